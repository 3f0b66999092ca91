"""Which storage a root's URI means."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from storage_engine.errors import ConfigError
from storage_engine.storage import Storage
from storage_engine.storage.posix import PosixStorage


def open_storage(uri: str) -> Storage:
    """The storage behind a path or a file: URI.

    Raises:
        ConfigError: a scheme that Lakelog has no storage for.
    """
    if not uri:
        raise ConfigError("root", "found an empty path", "Name the directory that holds the topics.")
    scheme = urlsplit(uri).scheme
    if scheme == "file":
        return PosixStorage(unquote(urlsplit(uri).path))
    if scheme and "://" in uri:
        raise ConfigError(f"root {uri}", f"found the scheme {scheme!r}", "Use a path on a mounted file system.")
    return PosixStorage(uri)
