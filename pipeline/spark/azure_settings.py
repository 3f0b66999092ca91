"""Translates the storage options of Azure into settings of ABFS, Hadoop's file system for abfss://.

    abfss://container@account.dfs.core.windows.net/prefix

An account key or a SAS token comes from the storage options or from the environment, as for the engine
(storage_engine.storage.objects.object_store_access). If the root is in Azure, the key or the token is only for the
account of the root: in requests to another account, the token would be known to the owner of that account. Other
credentials, for example a managed identity, are settings of ABFS, which the user gives to spark-submit as
spark.hadoop.NAME.

An endpoint with the form http://host:port/account belongs to an emulator, for example Azurite. Azurite has only the API
of Blob Storage. So for such an endpoint, ABFS uses this API, and does not ask whether the account has a hierarchical
namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from storage_engine.storage.storage_options import AZURE_ENDPOINTS, azure_credentials, azure_value

_CREDENTIALS = ("fs.azure.account.key", "fs.azure.account.auth.type", "fs.azure.sas.fixed.token")
_WITHOUT_TLS = {
    "fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "fs.azure.always.use.https": "false",
    "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
}
"""The class that Hadoop has for abfss:// always uses TLS. Without TLS, the other HTTP library does not start."""


def abfs_settings(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """ABFS's settings; empty if there are no options of Azure.

    Args:
        options: the storage options, with names in lower case. They override the environment.
        environ: the environment variables.
    """
    settings = {}
    found = azure_credentials(options, environ)
    if key := found.get("azure_storage_account_key"):
        settings["fs.azure.account.key"] = key
    elif token := found.get("azure_storage_sas_token"):
        settings["fs.azure.account.auth.type"] = "SAS"
        settings["fs.azure.sas.fixed.token"] = token.removeprefix("?")
    return settings | _emulator(azure_value(AZURE_ENDPOINTS, options, environ) or "")


def of_account(setting: str, root: str) -> str:
    """The name under which a setting applies only to the account of the root, if the setting is a credential and the root
    is in Azure. Otherwise the name of the setting, which applies to all accounts."""
    scheme, place, *_ = urlsplit(root)
    account = place.rpartition("@")[2]
    return f"{setting}.{account}" if setting in _CREDENTIALS and scheme == "abfss" else setting


def _emulator(endpoint: str) -> dict[str, str]:
    """The settings for the endpoint of an emulator; empty for other endpoints, whose host is in the URI of the root."""
    scheme, host, path, _, _ = urlsplit(endpoint)
    if ":" not in host or not path.strip("/"):
        return {}
    settings = {
        "fs.azure.abfs.endpoint": host,
        "fs.azure.account.hns.enabled": "false",
        "fs.azure.fns.account.service.type": "BLOB",
    }
    return settings | (_WITHOUT_TLS if scheme == "http" else {})
