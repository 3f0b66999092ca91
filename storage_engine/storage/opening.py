"""Opens the storage of a root, given by a path or a URI."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage_engine.errors import ConfigError
from storage_engine.storage import Storage
from storage_engine.storage.posix import PosixStorage


def open_storage(uri: str) -> Storage:
    """Return the storage at a path, which may begin with `~`, or at a file: URI.

    Raises:
        ConfigError: the URI names no directory of this host, or has a scheme that Lakelog does not support.
    """
    place = f"root {uri!r}"
    if not uri:
        raise ConfigError("root", "found an empty path", "Name the directory that holds the topics.")
    try:
        scheme, host, path, query, fragment = urlsplit(uri)
    except ValueError as error:
        raise ConfigError(place, f"neither a path nor a URI: {error}", "Write the path.") from None
    if scheme == "file":
        if host not in ("", "localhost") or not path.startswith("/") or query or fragment:
            raise ConfigError(place, "expected file:/// and a path of this host", "Write file:///mnt/log, or the path.")
        return PosixStorage(_usable(unquote(path), place))
    if scheme and "://" in uri:
        raise ConfigError(place, f"found the scheme {scheme!r}", "Use a path on a mounted file system.")
    return PosixStorage(_usable(uri, place))


def _usable(path: str, place: str) -> Path:
    """Return the absolute path, after a check that the operating system can open such a path."""
    if "\0" in path:
        raise ConfigError(place, "found a NUL character, which no path can have")
    try:
        os.fsencode(path)
        return (Path(path).expanduser() if path.startswith("~") else Path(path)).absolute()
    except UnicodeEncodeError as error:
        raise ConfigError(place, f"found a character at position {error.start} that no path can hold") from None
    except FileNotFoundError:
        raise ConfigError(place, "the current directory was removed", "Write the whole path.") from None
    except RuntimeError:
        raise ConfigError(place, "this user has no home directory", "Write the whole path.") from None
