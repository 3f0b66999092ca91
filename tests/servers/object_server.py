"""Describes a running server of an object store to tests and to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class ObjectServer:
    """A running server.

    scheme: the scheme of its URIs, for example "s3".
    endpoint: where clients find the server, for example "http://127.0.0.1:4711".
    endpoint_option: the name of the option with the endpoint.
    options: the other options, which have the names of obstore.
    create_bucket: create a bucket with this name; a container on Azure.
    account: what the host of its URIs contains after the name of a bucket, for example "@account.dfs.core.windows.net".
    delete_bucket: delete a bucket and all its objects; None if the server does not become slower with many objects.
    folder: the folder in which the server stores the objects as files, with a folder for each bucket; None if it does not.
    """

    scheme: str
    endpoint: str
    endpoint_option: str
    options: Mapping[str, str]
    create_bucket: Callable[[str], None]
    account: str = ""
    delete_bucket: Callable[[str], None] | None = None
    folder: Path | None = None

    @property
    def config(self) -> dict[str, str]:
        """What a store of obstore needs, beside the client's option allow_http."""
        return {self.endpoint_option: self.endpoint, **self.options}

    def uri_of(self, bucket: str) -> str:
        """The URI of a bucket, to which a path can be added."""
        return f"{self.scheme}://{bucket}{self.account}"

    def behind(self, endpoint: str) -> Self:
        """The same server, for clients that connect to a proxy."""
        return replace(self, endpoint=endpoint)
