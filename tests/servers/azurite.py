"""Starts Azurite, an emulator of Azure Blob Storage, for tests. scripts/install_azurite.py installs the program.

The server has an account with a key of its own, and keeps the objects in memory. azurite_corrections.js
corrects two things in which Azurite differs from Azure, and a slow deletion.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode

from scripts.install_azurite import azurite
from tests.servers.local_server import serving
from tests.servers.object_server import ObjectServer

ACCOUNT = "lakelog"
API_VERSION = "2024-11-04"
CORRECTIONS = Path(__file__).with_name("azurite_corrections.js")


@contextmanager
def azure_server() -> Iterator[ObjectServer]:
    node, program = azurite()
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    with serving(
        lambda port: [
            node, "--require", CORRECTIONS, program, "--blobHost", "127.0.0.1", "--blobPort", str(port),
            "--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck",
        ],
        {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}, f"/{ACCOUNT}",
    ) as port:  # fmt: skip
        options = {"azure_storage_account_name": ACCOUNT, "azure_storage_account_key": key}
        yield ObjectServer(
            "abfss",
            f"http://127.0.0.1:{port}/{ACCOUNT}",
            "azure_storage_endpoint",
            options,
            lambda name: _change_container(port, key, "PUT", name),
            f"@{ACCOUNT}.dfs.core.windows.net",
            lambda name: _change_container(port, key, "DELETE", name),
        )


def account_token(account: str, key: str) -> str:
    """A SAS token with all rights on an account until 2100, signed by the rules of Azure's account SAS."""
    token = {
        "sp": "rwdlac",
        "ss": "b",
        "srt": "sco",
        "st": "",
        "se": "2100-01-01T00:00:00Z",
        "sip": "",
        "spr": "https,http",
    }
    token["sv"] = API_VERSION
    signed = "\n".join([account, *token.values(), "", ""])
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), signed.encode(), hashlib.sha256)).decode()
    return urlencode({**{name: value for name, value in token.items() if value}, "sig": signature})


def _change_container(port: int, key: str, method: str, name: str) -> None:
    """Create or delete a container, with a signature by the rules of Azure's Shared Key.

    Args:
        method: PUT or DELETE.
    """
    path = f"/{ACCOUNT}/{name}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API_VERSION}
    named = (f"{each}:{headers[each]}" for each in sorted(headers))
    signed = "\n".join([method, *[""] * 11, *named, f"/{ACCOUNT}{path}", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), signed.encode(), hashlib.sha256)).decode()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(
            method,
            f"{path}?restype=container",
            headers={**headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}"},
        )
        reply = connection.getresponse()
        if reply.status not in (201, 202):
            raise RuntimeError(f"Azurite refused to {method} the container {name}: {reply.status} {reply.read()!r}")
    finally:
        connection.close()
