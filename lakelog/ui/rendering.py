"""Makes a page from a template.

Jinja escapes every value. The exceptions are the elements that lakelog.report.markup has built, which are escaped
already. Then escapes are put in place of all characters that a browser or a terminal would interpret. So no character
of a file can hide, reverse or replace other text.

A page with a form has the referrer policy same-origin. All other pages have the policy no-referrer. With that policy, a
browser would send the form with `Origin: null`, and the server could not distinguish its own pages from other pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import quote, urlencode

from lakelog.optional import optional
from lakelog.report import markup
from lakelog.report.markup import element
from lakelog.terminal.text import shown_line, shown_lines
from lakelog.ui.access.guard import FORM_TOKEN, cookie_name, session_of
from lakelog.ui.access.sessions import SESSION_SECONDS
from lakelog.ui.site import Site
from storage_engine.errors import LogError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size

with optional("jinja2", "lakelog[ui]", "The command `lakelog ui`"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response

STATIC_FILES = {
    "report.css": ("lakelog.report", "page.css", "text/css"),
    "ui.css": ("lakelog.ui", "static/ui.css", "text/css"),
    "refresh.js": ("lakelog.ui", "static/refresh.js", "text/javascript"),
}
"""The files that pages load, by name: package, path in the package, media type."""


def _kept(value: object) -> object:
    return Markup(value) if isinstance(value, markup.Markup) else "–" if value is None else value


_ENVIRONMENT = Environment(
    loader=PackageLoader("lakelog.ui"),
    autoescape=True,
    finalize=_kept,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "number": shown_number, "size": shown_size, "moment": shown_moment, "counted": counted,
}  # fmt: skip


@dataclass(frozen=True)
class Paging:
    """A part of a long list.

    page: from 1.
    pages: at least 1.
    first, end: the places in the list, end excluded.
    total: the length of the list.
    """

    page: int
    pages: int
    first: int
    end: int
    total: int

    @property
    def numbers(self) -> Sequence[int]:
        """The pages with a link: the first, the last, and those near this page."""
        near = range(max(1, self.page - 2), min(self.pages, self.page + 2) + 1)
        return sorted({1, *near, self.pages})


def paging(total: int, page: int, size: int) -> Paging:
    """The part of a list on a page. A page after the last one is the last one."""
    pages = max(1, -(-total // size))
    page = min(max(1, page), pages)
    return Paging(page, pages, (page - 1) * size, min(total, page * size), total)


def address(*path: str, **parameters: object) -> str:
    """An address on this server: the quoted path, and the parameters that are not None."""
    query = urlencode({name: str(value) for name, value in parameters.items() if value is not None})
    return f"/{'/'.join(quote(each, safe='') for each in path)}{f'?{query}' if query else ''}"


def link(text: str, *path: str, **parameters: object) -> markup.Markup:
    """A link to a page of this server."""
    return element("a", shown_line(text), href=address(*path, **parameters))


def link_head(text: str, *path: str, **parameters: object) -> markup.Markup:
    """The cell that names a row, with a link to a page of this server."""
    return element("th", link(text, *path, **parameters), scope="row")


_ENVIRONMENT.globals |= {"address": address}


@dataclass(frozen=True)
class Look:
    """How a page is shown.

    title: the heading.
    topic: the topic to which the page belongs; empty for a page of the root.
    tab: the name of the page in the navigation.
    is_live: whether the page asks for its newest content again and again.
    is_unfinished: whether work is running whose result the page will show. Then the page asks again after a second.
    has_form: whether the page has a form that is sent with POST.
    change: the id of the change that the page shows.
    """

    title: str
    topic: str = ""
    tab: str = ""
    is_live: bool = False
    is_unfinished: bool = False
    has_form: bool = False
    change: str = ""


def show(
    site: Site, request: Request, template: str, look: Look, values: Mapping[str, object], status: int = 200
) -> Response:
    """The answer with a page.

    Args:
        template: the name of a file in templates/, without its suffix.
        values: the variables of the template.
        status: the status of HTTP.
    """
    session = session_of(request)
    is_new = look.has_form and session is None
    if is_new:
        session = site.sessions.begin(is_logged_in=False)
    page = _ENVIRONMENT.get_template(f"{template}.html").render(
        values,
        look=look, site=site, options=site.options, now=site.now_ms(),
        may_see=request.state.may_see, running=site.changes.running if request.state.may_see else None,
        is_logged_in=session is not None and session.is_logged_in,
        form_token_name=FORM_TOKEN, form_token=site.sessions.form_token(session) if look.has_form and session else "",
    )  # fmt: skip
    response = HTMLResponse(shown_lines(page).encode(errors="replace"), status)
    if look.has_form:
        response.headers["Referrer-Policy"] = "same-origin"
    if is_new and session is not None:
        set_cookie(site, response, session.cookie)
    return response


def show_error(site: Site, request: Request, error: LogError, status: int, topic: str = "") -> Response:
    """The answer with an error: its place, what was found there, and what to do."""
    titles = {400: "Wrong request", 403: "Refused", 404: "Not found", 409: "Not done"}
    title = titles.get(status, f"{topic} is not readable" if topic else "Not readable")
    return show(site, request, "error", Look(title, topic), {"error": error}, status)


def set_cookie(site: Site, response: Response, cookie: str) -> None:
    """Let the browser keep a session."""
    name = cookie_name(site.options.port)
    response.set_cookie(
        name, cookie, max_age=SESSION_SECONDS, path="/", secure=site.options.tls is not None, httponly=True,
        samesite="strict",
    )  # fmt: skip


def static_file(name: str) -> Response | None:
    """A file that pages load; None if there is no such file."""
    if name not in STATIC_FILES:
        return None
    package, path, kind = STATIC_FILES[name]
    return Response(files(package).joinpath(path).read_bytes(), media_type=kind)
