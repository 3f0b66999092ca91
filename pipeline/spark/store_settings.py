"""Gives a Spark session access to object stores, and gives Spark's Python workers the storage options.

Spark's own readers and writers open s3:// paths with Hadoop's S3A, and abfss:// paths with Hadoop's ABFS. S3A and ABFS
need the same endpoint, region and credentials as the engine (storage_engine.storage.objects.object_store_access).
`hadoop_settings` translates these options for S3A, and `abfs_settings` (azure_settings) translates them for ABFS.
`open_stores` puts the result into the session's Hadoop configuration, which Spark sends to the executors. Spark's
configuration, UI, event log and plans do not contain the Hadoop configuration of a started session, so they contain no
secret.

The engine's code in Python workers reads environment variables. A worker on another host does not have the environment
of the driver. So `open_stores` also adds these variables to the environment that Spark gives to its Python workers.

HDFS needs no settings here, because Spark contains its client. If the options of spark-submit contain a setting as
spark.hadoop.NAME, `open_stores` does not replace its value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.spark.azure_settings import abfs_settings, of_account
from storage_engine.errors import ConfigError
from storage_engine.storage.storage_options import (
    AZURE_ENDPOINTS,
    S3_ENDPOINTS,
    S3_REGIONS,
    VARIABLE,
    s3_credentials,
    s3_value,
    storage_options,
)

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_SDK_CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
_CREDENTIALS = ",".join(
    (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        _SDK_CREDENTIALS,
    )
)
"""The order in which S3A looks for credentials: in the Hadoop configuration, then in the places of the AWS SDK, which are
the environment, a web identity, the profile in ~/.aws, and the role of the container or host."""

_REGION_OF_OTHER_STORES = "us-east-1"
_SECRETS = {
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
}
_FORWARDED = (
    VARIABLE,
    *(name.upper() for name in (*_SECRETS, *S3_ENDPOINTS, *S3_REGIONS)),
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    *(name.upper() for name in AZURE_ENDPOINTS),
)
"""Variables that mean the same on each host. Others, such as the path of a file with a token, belong to one host."""
_CONNECTORS = {
    "gs": "Give Spark Google's connector, com.google.cloud.bigdataoss:gcs-connector, with -- --packages.",
    "abfss": "Give Spark the connector of its Hadoop version, org.apache.hadoop:hadoop-azure, with -- --packages.",
    "az": "Write the root as abfss://container@account.dfs.core.windows.net/prefix.",
}
"""What to do if Spark has no file system for a scheme."""


def hadoop_settings(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """S3A's settings.

    Args:
        options: the storage options, with names in lower case. They override the environment.
        environ: the environment variables.

    Raises:
        ConfigError: the options contain a part of the credentials, but not both keys.
    """

    def find(*names: str) -> str | None:
        return s3_value(names, options, environ)

    def is_on(name: str) -> bool:
        return (find(name) or "").lower() == "true"

    settings = {"fs.s3.impl": _S3A}
    settings["fs.s3a.aws.credentials.provider"] = _ANONYMOUS if is_on("aws_skip_signature") else _CREDENTIALS
    endpoint, region = find(*S3_ENDPOINTS), find(*S3_REGIONS)
    if endpoint:
        settings["fs.s3a.endpoint"] = endpoint
        settings["fs.s3a.path.style.access"] = "false" if is_on("aws_virtual_hosted_style_request") else "true"
        region = region or _REGION_OF_OTHER_STORES
    if region:
        settings["fs.s3a.endpoint.region"] = region
    return settings | {_SECRETS[name]: value for name, value in s3_credentials(options, environ).items()}


def open_stores(context: SparkContext, root: str = "") -> None:
    """Set the settings of S3A and ABFS, and the workers' environment. Only files and functions that Spark opens later
    are affected.

    Args:
        root: the URI of the job's root. If it is in Azure, the credentials of Azure are only for its account.

    Raises:
        ConfigError: the variable with the storage options contains no JSON object of texts, or a part of the credentials.
    """
    assert context._jsc is not None, "the context was not stopped"  # noqa: SLF001 - PySpark has no other access
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001
    own = dict(context.getConf().getAll())
    options = storage_options()
    for key, value in (hadoop_settings(options, os.environ) | abfs_settings(options, os.environ)).items():
        name = of_account(key, root)
        if own.keys().isdisjoint({f"spark.hadoop.{key}", f"spark.hadoop.{name}"}):
            hadoop.set(name, value)
    context.environment.update({name: os.environ[name] for name in _FORWARDED if os.environ.get(name)})


def require_file_system(spark: SparkSession, uri: str) -> None:
    """Check that Spark itself can open files at a URI.

    Streams need this for their checkpoints, and Delta needs it for its tables.

    Raises:
        ConfigError: Spark has no file system for the scheme of the URI.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return
    context = spark.sparkContext
    assert context._jvm is not None, "the context was not stopped"  # noqa: SLF001
    assert context._jsc is not None, "the context was not stopped"  # noqa: SLF001
    try:
        context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())  # noqa: SLF001
    except Py4JJavaError as error:
        remedy = _CONNECTORS.get(scheme, "Use a root that Spark can open.")
        raise ConfigError(f"root {uri}", f"Spark has no file system for {scheme}://", remedy) from error
