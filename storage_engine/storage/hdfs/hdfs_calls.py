"""Calls hdfs-native with time limits, repeats failed calls, and turns errors into StorageErrors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from storage_engine.errors import (
    AlreadyExistsError,
    ConfigError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from storage_engine.storage import missing_package

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

_PAUSES = (0.05, 0.2, 0.8)
"""Seconds of pause before each further attempt."""
_CLEANING_SECONDS = 2.0
"""How long a writer that failed waits for the deletion of its temporary file."""
_TIMEOUT = "dfs.client.socket-timeout"
_TIMEOUT_MS = 60_000
_ATTEMPTS = "dfs.client.failover.max.attempts"
_REPLICATION = "dfs.replication"
_VARIABLES = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER")
"""The environment variables that a client reads when it is created."""

_ACCESS = "Give this user permission to read and write here. HADOOP_USER_NAME or the Kerberos ticket names the user."
_KINDS: dict[str, tuple[type[StorageError], str]] = {
    "AccessControlException": (StorageAccessError, _ACCESS),
    "AuthorizationException": (StorageAccessError, _ACCESS),
    "ParentNotDirectoryException": (
        StorageAccessError,
        "A part of this path is a file: move the file away, or choose another root.",
    ),
    "InvalidPathException": (StorageAccessError, "HDFS does not allow this name: use another name without `:`."),
    "PathIsNotEmptyDirectoryException": (StorageAccessError, "The path is a directory, but must be a file."),
    "NSQuotaExceededException": (StorageFullError, "Raise the quota or free names in this directory."),
    "DSQuotaExceededException": (StorageFullError, "Raise the quota or free space in this directory."),
    "QuotaByStorageTypeExceededException": (StorageFullError, "Raise the quota or free space in this directory."),
    "SafeModeException": (StorageUnavailableError, "Wait until the NameNode leaves safe mode, or check the DataNodes."),
    "StandbyException": (StorageUnavailableError, "Check which NameNode is active, then repeat the command."),
    "NotReplicatedYetException": (StorageUnavailableError, "Check the DataNodes, then repeat the command."),
    "RetriableException": (StorageUnavailableError, "Repeat the command later."),
    "IOException": (StorageUnavailableError, "Check the DataNodes and their free space, then repeat the command."),
}
"""The kind and the remedy of an error, by the name of the exception that the NameNode reports."""
_JAVA_ERROR = re.compile(r'(?:Fatal)?RPCError\("[\w.$]*?(\w+)", "(.*)"\)', re.DOTALL)
_LOGIN_ERRORS = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_PASSING_ERROR = re.compile(
    r'(?:DataTransferError|ChecksumError|BlocksNotFound|OperationFailed|InternalError)(?:\("(.*?)(?:: \[|"\)))?',
    re.DOTALL,
)
"""The message of such an error may end with a list of all DataNodes of a block."""

_T = TypeVar("_T")
_CLIENTS: dict[tuple[object, ...], Client] = {}
"""The clients of this process, by process, cluster and settings. A client has a thread for each core, so the storages of
a process share it. A forked process cannot use the clients of its parent, but must not free them either.
"""
_CONNECTION_SECONDS = 3.5
"""hdfs-native keeps connections to DataNodes for three seconds, for all clients of a process. A forked process has the
connections of its parent. It must not use them, because replies could reach the wrong process. So it waits.
"""
_FORKED_AT: list[float] = []
os.register_at_fork(after_in_child=lambda: _FORKED_AT.append(time.monotonic()))


class HdfsCalls:
    """The calls to one cluster. Several threads may use one object, and a forked process may use the object of its
    parent.

    replication: how many replicas the blocks of new files get; None: the NameNode's default.
    """

    def __init__(self, uri: str, authority: str, settings: Mapping[str, str]) -> None:
        """
        Args:
            uri: the root, for messages.
            authority: NameNode or name service.
            settings: replace the settings of core-site.xml and hdfs-site.xml.

        Raises:
            ConfigError: a setting is wrong, or the package is missing.
        """
        self._uri = uri
        self._authority = authority
        self._settings = dict(settings)
        self._seconds = (_number(settings, _TIMEOUT) or _TIMEOUT_MS) / 1000
        self.replication = _number(settings, _REPLICATION)
        if re.search(r":\d+$", authority):  # one NameNode: there is no other NameNode to try
            self._settings.setdefault(_ATTEMPTS, "0")
        self._client()

    def place(self, key: str) -> str:
        return f"{self._uri.rstrip('/')}/{key}"

    def repeated(self, work: Callable[[], _T]) -> _T:
        """Call `work`, and call it again after a pause if the cluster is unavailable. A call that ran until its time
        limit is not repeated.
        """
        last = time.monotonic() + self._seconds
        for pause in _PAUSES:
            try:
                return work()
            except StorageUnavailableError:
                if time.monotonic() >= last:
                    raise
            time.sleep(pause)
        return work()

    def remove_quietly(self, key: str, path: str) -> None:
        """Delete a temporary file. If the NameNode does not answer soon, do not wait for the answer."""
        with suppress(StorageError):
            self.call(key, lambda client: client.delete(path), _CLEANING_SECONDS)

    def file_info(self, key: str, path: str) -> FileStatus:
        return self.repeated(lambda: self.call(key, lambda client: client.get_file_info(path)))

    def call(self, key: str, work: Callable[[Client], _T], seconds: float | None = None) -> _T:
        """Call `work` once.

        Raises:
            StorageError: names the key. StorageUnavailableError: the call failed, or has not ended after `seconds`. In
                this case the call may still take effect.
        """
        client = self._client()
        result: Future[_T] = Future()

        def run() -> None:
            try:
                result.set_result(work(client))
            except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
                result.set_exception(error)

        Thread(target=run, daemon=True, name="hdfs").start()
        try:
            return result.result(seconds or self._seconds)
        except TimeoutError:
            if _CLIENTS.get(self._client_key()) is client:
                del _CLIENTS[self._client_key()]  # the next call opens a new connection
            raise self.unavailable(key, f"HDFS did not answer within {seconds or self._seconds:g} seconds") from None
        except (OSError, RuntimeError, NotImplementedError) as error:
            raise self._error(key, error) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise StorageError(self.place(key), f"hdfs-native failed: {error}", "Report this error.") from None

    def _client(self) -> Client:
        key = self._client_key()
        client = _CLIENTS.get(key)
        return client if client is not None else _CLIENTS.setdefault(key, self._new_client())

    def _client_key(self) -> tuple[object, ...]:
        environment = (os.environ.get(name) for name in _VARIABLES)
        return (os.getpid(), self._authority, *environment, *sorted(self._settings.items()))

    def _new_client(self) -> Client:
        place = f"root {self._uri}"
        try:
            from hdfs_native import Client
        except ImportError:
            raise missing_package(self._uri, "hdfs-native", "hdfs") from None
        if _FORKED_AT and any(process != os.getpid() for process, *_ in _CLIENTS):
            time.sleep(max(0.0, _FORKED_AT[-1] + _CONNECTION_SECONDS - time.monotonic()))
        try:
            return Client(f"hdfs://{self._authority}", self._settings)
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                place,
                f"no HDFS client can be created: {_first_line(str(error))}",
                "Write hdfs://host:port/path, or set HADOOP_CONF_DIR to the directory of core-site.xml and hdfs-site.xml.",
            ) from None

    def unavailable(self, key: str, problem: str) -> StorageUnavailableError:
        remedy = "Check the NameNode, the DataNodes and the network, then repeat the command."
        return StorageUnavailableError(self.place(key), problem, remedy)

    def _error(self, key: str, error: Exception) -> StorageError:
        """Return the StorageError for an error of hdfs-native."""
        place, text = self.place(key), str(error)
        if isinstance(error, IsADirectoryError) or "is not a file" in text:
            return StorageAccessError(place, "the path is a directory", "The path must be a file: choose another root.")
        if isinstance(error, FileNotFoundError):
            return NotFoundError(place, "no such file in HDFS", "Check the root and the name.")
        if isinstance(error, FileExistsError):
            return AlreadyExistsError(place, "already exists", "Another process has created a file of this name.")
        if isinstance(error, OSError):
            return self.unavailable(key, f"HDFS cannot be reached: {_first_line(text)}")
        if java := _JAVA_ERROR.fullmatch(text):
            name, message = java[1], _first_line(java[2])
            kind, remedy = _KINDS.get(name, (StorageError, "HDFS refused the operation."))
            return kind(place, f"the NameNode reports {name}: {message}", remedy)
        if text.startswith(_LOGIN_ERRORS):
            problem = f"the login at the NameNode failed: {_first_line(text)}"
            return StorageAccessError(place, problem, "Get a Kerberos ticket with `kinit`, and check core-site.xml.")
        if passing := _PASSING_ERROR.match(text):
            return self.unavailable(
                key, f"HDFS could not transfer the bytes of the file: {_first_line(passing[1] or text)}"
            )
        return StorageError(place, _first_line(text), "HDFS refused the operation.")


def _number(settings: Mapping[str, str], name: str) -> int | None:
    """Return a setting that is a positive number."""
    text = settings.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"storage option {name}", "expected a whole number above 0")
    return int(text)


def _first_line(text: str) -> str:
    """Return a message of Java without the stack trace that follows it."""
    return re.split(r"\\n|\n", text)[0].replace('\\"', '"').strip()
