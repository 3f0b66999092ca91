"""Opens a storage: at a root's URI, in a local directory, or in a new local directory. Code outside this package opens
storages only through this module, and never names a kind of storage.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage_engine.errors import AlreadyExistsError, ConfigError
from storage_engine.storage import Directory, Storage
from storage_engine.storage.hdfs.hdfs_storage import HdfsStorage
from storage_engine.storage.objects.object_storage import ObjectStorage
from storage_engine.storage.objects.object_store_access import is_object_store
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.posix_directories import make_directory, remove_folder, sync_directory
from storage_engine.storage.posix_errors import named

_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*")
_SCHEMES = frozenset(("s3", "s3a", "gs", "az", "abfs", "abfss", "wasb", "wasbs", "hdfs", "file", "http", "https"))
"""A text that begins with one of these schemes and `:` is a URI, also without `//`."""
_WITHOUT_USER = frozenset(("s3", "s3a", "gs", "az", "http", "https"))
"""URIs with these schemes have no `@` before the path."""
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f]")


def open_storage(uri: str) -> Storage:
    """Return the storage at a path, which may begin with `~`, at a file: or hdfs: URI, or at the URI of an object store.

    Raises:
        ConfigError: the URI names no directory of this host, or has a scheme that Lakelog does not support.
    """
    place = f"root {uri!r}"
    if not uri:
        raise ConfigError("root", "found an empty path", "Give the directory that contains the topics.")
    _refuse_secrets(uri)
    try:
        scheme, host, path, query, fragment = urlsplit(uri)
    except ValueError as error:
        raise ConfigError(place, f"is neither a path nor a URI: {error}", "Write the path.") from None
    if scheme == "file":
        if host not in ("", "localhost") or not path.startswith("/") or query or fragment:
            raise ConfigError(place, "expected file:/// and a path of this host", "Write file:///mnt/log, or the path.")
        return PosixStorage(_usable(unquote(path), place))
    if scheme == "hdfs":
        return HdfsStorage(uri)
    if is_object_store(scheme):
        return ObjectStorage(uri)
    if scheme and "://" in uri:
        known = "Use a path on a mounted file system, or s3://, gs://, az://, abfss:// or hdfs://."
        raise ConfigError(place, f"found the scheme {scheme!r}", known)
    return PosixStorage(_usable(uri, place))


def is_same_storage(one: Storage, other: Storage) -> bool:
    """Whether two storages are the same place. Symbolic links of local paths are followed."""
    if isinstance(one, PosixStorage) and isinstance(other, PosixStorage):
        return os.path.realpath(one.root) == os.path.realpath(other.root)
    return one.uri == other.uri


def open_directory(path: Path | str) -> Directory:
    """The storage of a local directory, in which symbolic links are followed, as by a broker. The directory is created
    with its first file."""
    return PosixStorage(path, follows_links=True)


@contextmanager
def new_directory(path: Path) -> Iterator[Directory]:
    """Create a directory whose contents appear all together or not at all.

    The block writes into a temporary directory beside `path`. At the end, this directory is renamed to `path`. After an
    error, the temporary directory is removed. A crash leaves the temporary directory, whose name is the name of `path`
    with a random suffix.

    Raises:
        AlreadyExistsError: the path already exists and is not an empty directory.
    """
    final = Path(os.path.realpath(path))
    with named(str(final)):
        if final.exists() and (not final.is_dir() or any(final.iterdir())):
            raise AlreadyExistsError(
                str(final),
                "already exists and is not an empty directory",
                "Choose a directory that does not exist yet.",
            )
        temporary = final.with_name(f"{final.name}.{secrets.token_hex(8)}")
        make_directory(temporary)
    try:
        yield PosixStorage(temporary)
        with named(str(final)):
            temporary.rename(final)
            sync_directory(final.parent)
    except BaseException:
        with suppress(OSError):
            remove_folder(temporary)
        raise


def _refuse_secrets(uri: str) -> None:
    """Refuse a URI with a key, a password or a token. The messages do not contain the URI. A password may contain `/`.

    HDFS uses a folder as it is, so `@`, `?` and `#` may be in its name.
    """
    shown = _INVISIBLE.sub("", uri).lstrip()  # as urlsplit reads it
    scheme, colon, rest = shown.partition(":")
    scheme = scheme.lower()
    if not colon or not _SCHEME.fullmatch(scheme) or not (rest.startswith("//") or scheme in _SCHEMES):
        return
    rest = rest.lstrip("/")
    host = rest.partition("/")[0]
    if scheme == "hdfs":
        rest = host
    if ":" in unquote(rest.rpartition("@")[0]):
        problem, remedy = "the URI contains a user and a password", "Remove both from the URI"
    elif "@" in host and scheme in _WITHOUT_USER:
        problem, remedy = "the URI contains `@`, and the text before `@` can be a key", "Remove both from the URI"
    elif found := re.search("[?#]", rest):
        problem, remedy = f"the URI contains `{found[0]}`, and what follows can be a token", "Remove it from the URI"
    elif shown != uri:
        problem, remedy = "the URI begins with white space or contains a control character", "Remove this character"
    else:
        return
    raise ConfigError("root", problem, f"{remedy} (docs/STORAGE.md, Credentials).")


def _usable(path: str, place: str) -> Path:
    """Return the absolute path, after a check that the operating system can open such a path."""
    if "\0" in path:
        raise ConfigError(place, "found a NUL character, which no path can have")
    try:
        os.fsencode(path)
        return (Path(path).expanduser() if path.startswith("~") else Path(path)).absolute()
    except UnicodeEncodeError as error:
        raise ConfigError(place, f"found a character at position {error.start} that no path can have") from None
    except FileNotFoundError:
        raise ConfigError(place, "the current directory was removed", "Write the full path.") from None
    except RuntimeError:
        raise ConfigError(place, "this user has no home directory", "Write the full path.") from None
