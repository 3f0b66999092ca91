"""`lakelog ui`: serves pages about a root to a browser.

The command serves until SIGTERM or Ctrl-C ends it. The command prints the address of the pages to standard output. For
each change that a form has made, the command prints a line to standard error. By default, the pages change nothing and
show no contents of records, and only programs on this host can open the pages.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, listen_address, open_root, open_topics
from lakelog.cli.output import write_error, write_line
from lakelog.cli.stopping import stopped_by_signals
from storage_engine.errors import ExitStatus

CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        help="Serve the pages with TLS: a file with the certificate of this server in PEM format, and after it the"
        " certificates that have signed it.",
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="A file with the private key of the certificate, in PEM format and without a password.",
    ),
]
StopTimeoutOption = Annotated[
    int,
    typer.Option(
        "--stop-timeout",
        metavar="SECONDS",
        min=0,
        max=86_400,
        help="How long the command waits for a running change before it ends.",
    ),
]


def ui(
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT",
            help="The address of the pages. An address that other hosts can reach requires a token."),
    ] = "127.0.0.1:8787",
    token: Annotated[
        Path | None,
        typer.Option("--token", metavar="FILE",
            help="A file with a token in its first line. Users must enter the token before they see a page. Default:"
            " the variable LAKELOG_UI_TOKEN."),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME",
            help="Another host name that browsers may use to open the pages; may be given several times."),
    ] = None,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show keys, values and headers of records, and search in keys and headers.")
    ] = False,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes",
            help="Show forms that apply a plan, alter a topic's setting, and delete a group. Default: change nothing."),
    ] = False,
    refresh: Annotated[
        int, typer.Option("--refresh", metavar="SECONDS", min=1, max=3600, help="How often a page asks for newer content.")
    ] = 10,
    stop_timeout: StopTimeoutOption = 60,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Serve pages about topics, records, groups, dead letters, plans and history to a browser.

    docs/UI.md describes the pages. The pages work without scripts, and load nothing from other hosts. SIGTERM or Ctrl-C
    ends the command.
    """
    from lakelog.ui.access.options import DEFAULT_LISTEN, UiOptions, check_options, read_token
    from lakelog.ui.access.tls import tls_files

    host, port = listen_address(listen, DEFAULT_LISTEN)
    options = UiOptions(
        host, port, read_token(token, warn=write_error), tuple(host_name or ()), show_values, allow_changes, refresh,
        tls_files(tls_certificate, tls_key, write_error), stop_timeout,
    )  # fmt: skip
    check_options(options)
    topics = open_topics(root, conf, examines=True)
    _, settings = open_root(root, conf, kept=False)
    from lakelog.ui.serving import serve

    if allow_changes and options.token is None:
        write_error("--allow-changes without a token: every user of this host can change the root with these pages")
    with stopped_by_signals() as stop:
        is_done = serve(topics, settings, options, stop, lambda url: write_line(f"pages at {url}"), write_error)
    if not is_done:
        os._exit(ExitStatus.ERROR)  # a thread still works, and Python's own end would wait for parts of its work
