"""Checks each request before a page sees it, and adds the headers of each answer.

The checks, in this order:

    Host      names the server: a loopback name, the address of --listen, or a --host-name. So another web page cannot
              read these pages through a name that it has pointed to this server (DNS rebinding).
    session   if the server has a token: the user has entered the token in this session. Otherwise the login page is shown.
    form      a POST has an Origin that is this server, and the form token of its session. So another web page cannot
              send a form in the name of the user. A form has at most MOST_BYTES bytes.

A refused request reaches no page. The cookie has SameSite=Strict and HttpOnly; with TLS it also has Secure. The headers
allow a page to load only the style, the script and the pictures of this server. The headers also forbid other pages to
show this page in a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, quote

from lakelog.optional import optional
from lakelog.ui.access.options import UiOptions
from lakelog.ui.access.sessions import Session, Sessions
from lakelog.ui.parameters import MOST_SHOWN, Parameters
from storage_engine.config import shown
from storage_engine.errors import ConfigError

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 64 * 1024
"""The largest form, in bytes."""
LOGIN = "/login"
STATIC = "/static/"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORM_TOKEN = "form_token"
_FORM = "application/x-www-form-urlencoded"
Refuse = Callable[[Request, ConfigError, int], Response]


def cookie_name(port: int) -> str:
    """The name of the cookie. Browsers send the cookies of a host to all of its ports, so the name has the port."""
    return f"lakelog_ui_{port}"


def session_of(request: Request) -> Session | None:
    """The session of a request that the guard has passed."""
    found: Session | None = request.state.session
    return found


def form_of(request: Request) -> Parameters:
    """The fields of a form that the guard has passed."""
    found: Parameters = request.state.form
    return found


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, options: UiOptions, sessions: Sessions, refuse: Refuse) -> None:
        """
        Args:
            refuse: makes the answer to a refused request, with a status.
        """
        self._app = app
        self._options = options
        self._sessions = sessions
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Referrer-Policy", "no-referrer")
            await send(message)

        scope.setdefault("state", {}).update(session=None, form=Parameters([]), may_see=False)
        request = Request(scope, receive)
        answer = await self._checked(request)
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    async def _checked(self, request: Request) -> Response | None:
        """The answer to a request that is refused; None for a request that a page may see."""
        try:
            check_host(request.headers, self._options)
        except ConfigError as error:
            return self._refuse(request, error, 400)
        cookie = request.cookies.get(cookie_name(self._options.port), "")
        session = request.state.session = self._sessions.find(cookie)
        path = request.url.path
        if path.startswith(STATIC):
            return None
        is_open = self._options.token is None or (session is not None and session.is_logged_in)
        request.state.may_see = is_open
        if not is_open and path != LOGIN:
            target = quote(f"{path}?{request.url.query}" if request.url.query else path, safe="")
            return RedirectResponse(f"{LOGIN}?next={target}" if request.method in ("GET", "HEAD") else LOGIN, 303)
        if request.method in ("GET", "HEAD"):
            return None
        try:
            check_origin(request.headers, self._options)
            form = request.state.form = await _read_form(request)
            if session is None or not self._sessions.is_form_token(session, form.text(FORM_TOKEN) or ""):
                raise ConfigError(
                    "form", "its token does not belong to this session", "Load the page again, and send its form."
                )
        except ConfigError as error:
            return self._refuse(request, error, 403)
        return None


def check_host(headers: Headers, options: UiOptions) -> None:
    """Check that a request names this server.

    Raises:
        ConfigError: the header Host is missing, repeated, or has another name.
    """
    found = headers.getlist("host")
    name, colon, port = found[0].rpartition(":") if found else ("", "", "")
    if not colon or not port.isdecimal():
        name = found[0] if found else ""
    if len(found) != 1 or name.lower() not in options.allowed_hosts:
        raise ConfigError(
            "header Host", f"found {_shown(found)}",
            "Open the address that the server has printed. To use the name or address in your browser's address bar, start"
            " the server with --host-name and this name or address.",
        )  # fmt: skip


def check_origin(headers: Headers, options: UiOptions) -> None:
    """Check that a form comes from a page of this server. A server without TLS may be behind a proxy with TLS.

    Raises:
        ConfigError: the header Origin is missing, or names another server.
    """
    host, found = headers.get("host", ""), headers.getlist("origin")
    schemes = ("https",) if options.tls is not None else ("http", "https")
    if len(found) != 1 or found[0].lower() not in {f"{scheme}://{host}".lower() for scheme in schemes}:
        raise ConfigError(
            "header Origin", f"found {_shown(found)}",
            "Send the form from a page of this server.",
        )  # fmt: skip


def _shown(values: Sequence[str]) -> str:
    return " and ".join(shown(each[:MOST_SHOWN]) for each in values[:2]) or "none"


async def _read_form(request: Request) -> Parameters:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise ConfigError(
            "header Content-Type", f"expected {_FORM}; found {shown(kind[:MOST_SHOWN])}", "Send the form of a page."
        )
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MOST_BYTES:
            raise ConfigError("form", f"found more than {MOST_BYTES:,} bytes", "Enter shorter values.")
    try:
        fields = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise ConfigError("form", "is not UTF-8 text with at most 64 fields", "Send the form of a page.") from None
    return Parameters(fields, "field")
