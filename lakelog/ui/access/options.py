"""The options of the server, and the checks that they fit together.

A server that other hosts can reach must have a token. The token comes from a file or from the environment, because every
user of a host can see the arguments of a process.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakelog.ui.access.tls import TlsFiles
from storage_engine.errors import NotFoundError, UsageError

TOKEN_VARIABLE = "LAKELOG_UI_TOKEN"
LEAST_TOKEN = 16
"""The least number of characters of a token. A token of this length cannot be found by trying."""
DEFAULT_LISTEN = "127.0.0.1:8787"
DEFAULT_STOP_SECONDS = 60
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_OTHERS_MAY_READ = 0o044


@dataclass(frozen=True)
class UiOptions:
    """The options of the server.

    host: the address to which the server binds.
    port: 0 chooses a free port.
    token: what a user must enter before the first page; None if no token is required.
    host_names: further names under which browsers reach the server.
    show_values: whether pages show keys, values and headers of records.
    allow_changes: whether forms may change the root.
    refresh_seconds: the time after which a page asks for its newest content.
    tls: the certificate and the key of the server; None for a server without TLS.
    stop_seconds: how long the server waits for a running change when it ends.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    token: str | None = None
    host_names: Sequence[str] = ()
    show_values: bool = False
    allow_changes: bool = False
    refresh_seconds: int = 10
    tls: TlsFiles | None = None
    stop_seconds: int = DEFAULT_STOP_SECONDS

    @property
    def shown_host(self) -> str:
        """The host in the address that the server prints. No request may name the address of all networks."""
        if not _is_any_address(self.host):
            return self._bound
        return self.host_names[0] if self.host_names else "[::1]" if ":" in self.host else "127.0.0.1"

    @property
    def _bound(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The hosts that a request may name, in lower case and without a port."""
        own = set() if _is_any_address(self.host) else {self._bound.lower()}
        return _LOOPBACK_NAMES | own | {name.lower() for name in self.host_names}


def check_options(options: UiOptions) -> None:
    """Check that the options fit together.

    Raises:
        UsageError: the server would be open to other hosts without a token, or a name is not a host name.
    """
    if options.token is None and not is_loopback(options.host):
        raise UsageError(
            f"--listen {options.host}:{options.port}",
            "other hosts can reach this address, and no token is given",
            f"Give --token FILE, or set {TOKEN_VARIABLE}. Or listen on {DEFAULT_LISTEN}.",
        )
    for name in options.host_names:
        if not _HOST_NAME.fullmatch(name):
            raise UsageError(
                "--host-name", f"expected a host name without a port; found {name!r}", "For example logs.lan."
            )


def is_loopback(host: str) -> bool:
    """Whether only programs of this host can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_any_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def read_token(
    file: Path | None, environment: Mapping[str, str] = os.environ, warn: Callable[[str], None] = lambda _: None
) -> str | None:
    """The token of the server: the first line of a file, or else the variable LAKELOG_UI_TOKEN; None if neither is given.

    Args:
        warn: called if other users of the host can read the file.

    Raises:
        NotFoundError: the file cannot be read.
        UsageError: the token is too short, or has characters that a form cannot carry.
    """
    place = f"--token {file}" if file is not None else TOKEN_VARIABLE
    if file is not None:
        try:
            text = file.expanduser().read_text("utf-8")
            mode = file.expanduser().stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else "is not text"
            raise NotFoundError(
                place, f"cannot be read: {problem}", "Give a file with the token in its first line."
            ) from error
        token = text.partition("\n")[0].strip()
        if mode & _OTHERS_MAY_READ:
            warn(f"{place}: other users of this host can read the token. Run: chmod 600 {file}")
    elif TOKEN_VARIABLE in environment:
        token = environment[TOKEN_VARIABLE].strip()
    else:
        return None
    if len(token) < LEAST_TOKEN or not token.isprintable():
        raise UsageError(
            place,
            f"expected a token of at least {LEAST_TOKEN} printable characters; found {len(token)} characters",
            "For example the output of: openssl rand -hex 16",
        )
    return token
