"""Opens the port, and serves the pages of a root until a signal arrives."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from lakelog.optional import optional
from lakelog.ui.access.options import UiOptions, check_options
from lakelog.ui.application import application, import_pages
from lakelog.ui.site import Site
from storage_engine.errors import StorageAccessError
from storage_engine.topic.broker_settings import BrokerSettings
from storage_engine.topic.topics import Topics

with optional("uvicorn", "lakelog[ui]", "The command `lakelog ui`"):
    import uvicorn

_SHUTDOWN_SECONDS = 3
_POLL_SECONDS = 0.02


def serve(
    topics: Topics,
    settings: BrokerSettings,
    options: UiOptions,
    stop: Callable[[None], object],
    ready: Callable[[str], None],
    warn: Callable[[str], None],
) -> bool:
    """Serve the pages of a root until `stop` returns.

    Returns:
        Whether all changes have ended. If not, the caller must end the process: a thread still makes the change.

    Args:
        settings: the broker settings of this run. They override those that are stored in the root.
        stop: waits until the program must end. It is called with None.
        ready: called with the address when the port is open.
        warn: called with one line for each change of the root, and for each problem that no page shows.

    Raises:
        UsageError: the options do not fit together.
        StorageAccessError: the port cannot be opened.
    """
    check_options(options)
    listening = _listening(options)
    options = replace(options, port=listening.getsockname()[1])
    site = Site(topics, settings, options, warn)
    site.watcher.begin()
    server = _server(site)
    # In a thread other than the main thread, uvicorn leaves the signals to `stop`.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="pages")
    importing = threading.Thread(target=import_pages, name="imports of pages")
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            time.sleep(_POLL_SECONDS)
        if server.started:
            ready(f"{'http' if options.tls is None else 'https'}://{options.shown_host}:{options.port}/")
            importing.start()
            stop(None)
    finally:
        server.should_exit = True
        thread.join()
        if importing.ident is not None:
            importing.join()
        site.watcher.stop()
        site.plans.stop()
        left = site.changes.stop(options.stop_seconds)
        listening.close()
    if left is not None:
        warn(
            f"{left}: was stopped, because it has not ended in {options.stop_seconds} s. The finished commits of the change"
            " remain, and nothing is half done. Make a new plan for the rest."
        )
    return left is None


def _server(site: Site) -> uvicorn.Server:
    options = site.options
    config = uvicorn.Config(
        application(site), log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
        log_level="critical", lifespan="off", timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_certfile=None if options.tls is None else options.tls.certificate,
        ssl_keyfile=None if options.tls is None else options.tls.key,
    )  # fmt: skip
    config.load()  # here and not in the thread, so that an error ends the command
    return uvicorn.Server(config)


def _listening(options: UiOptions) -> socket.socket:
    place = f"--listen {options.host}:{options.port}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(target)
        found.listen(128)
    except OSError as error:
        raise StorageAccessError(
            place, f"cannot be opened: {error.strerror or error}", "Choose another address."
        ) from error
    return found
