"""The routes, and the pages about errors.

An error of a page is shown on the page, with its place, what was found, and what to do:

    400    a parameter is wrong
    403    the request may not do this
    404    there is no such page, topic or group
    409    a change was not done
    200    the topic or the root cannot be read: the page says why, and the other pages still work
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from lakelog.optional import optional
from lakelog.ui import group_pages, overview_pages
from lakelog.ui.access.guard import LOGIN, Guard
from lakelog.ui.background.defects import report_defect
from lakelog.ui.rendering import show_error, static_file
from lakelog.ui.site import Site
from storage_engine.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRangeError,
    TopicError,
)

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp

_Page = Callable[[Site, Request], Response]
_TopicPage = Callable[[Site, Request, str], Response]


_imported_later: set[str] = set()


def _later(module: str, name: str) -> Callable[..., Response]:
    """A page of a module that is not imported yet. The modules of the overview are imported at once. The other modules need
    compiled kernels, and would delay the first page."""
    _imported_later.add(f"lakelog.ui.{module}")

    def page(*arguments: object) -> Response:
        found: Response = getattr(import_module(f"lakelog.ui.{module}"), name)(*arguments)
        return found

    return page


_PAGES: dict[str, _Page] = {
    "/": overview_pages.overview,
    "/groups": group_pages.groups,
    "/group": group_pages.group,
    "/dead-letters": _later("dead_letter_pages", "dead_letters"),
    "/plans": _later("plan_pages", "plans"),
    "/settings": overview_pages.settings,
    "/changes/{change}": _later("changes", "change_page"),
    LOGIN: _later("changes", "login_page"),
    "/logout": _later("changes", "logout_page"),
}
_TOPIC_PAGES: dict[str, _TopicPage] = {
    "/topics/{topic}": _later("topic_pages", "topic"),
    "/topics/{topic}/records": _later("record_pages", "records"),
    "/topics/{topic}/groups": group_pages.groups_of_topic,
    "/topics/{topic}/dead-letters": _later("dead_letter_pages", "dead_letters_of_topic"),
    "/topics/{topic}/plan": _later("plan_pages", "plan"),
    "/topics/{topic}/history": _later("topic_pages", "history"),
    "/topics/{topic}/settings": _later("topic_pages", "settings"),
}
_OPEN_FORMS: dict[str, _Page] = {LOGIN: _later("changes", "login"), "/logout": _later("changes", "logout")}
_FORMS: dict[str, _Page] = {"/group/delete": _later("changes", "delete_group")}
_TOPIC_FORMS: dict[str, _TopicPage] = {
    "/topics/{topic}/plan": _later("plan_pages", "apply"),
    "/topics/{topic}/settings": _later("changes", "alter_setting"),
}


def import_pages() -> None:
    """Import the modules of all pages, which takes a second. Otherwise this second would be part of the first page of a
    topic."""
    for module in sorted(_imported_later):
        with suppress(Exception):  # whoever opens a page of this module gets the error
            import_module(module)


def application(site: Site) -> ASGIApp:
    """The application of one root, for a server that speaks ASGI."""

    def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _refused(site, request, error)

    def unexpected(request: Request, error: Exception) -> Response:
        return show_error(site, request, report_defect(request.url.path, error, site.warn), 500)

    def refuse(request: Request, error: ConfigError, status: int) -> Response:
        return show_error(site, request, error, status)

    handlers = {HTTPException: wrong, Exception: unexpected}
    pages = Starlette(routes=_routes(site), exception_handlers=handlers)
    return Guard(pages, site.options, site.sessions, refuse)  # outside, so that every answer has its headers


def _refused(site: Site, request: Request, error: HTTPException) -> Response:
    path = request.url.path
    if error.status_code == 405:
        shown = LogError(path, f"does not accept {request.method}", "Use the links and forms of the pages.")
    else:
        shown = LogError(path, "there is no such page", "Begin at the overview.")
    return show_error(site, request, shown, error.status_code)


def _routes(site: Site) -> list[Route]:
    changing = site.options.allow_changes
    forms = _OPEN_FORMS | (_FORMS if changing else {})
    topic_forms = _TOPIC_FORMS if changing else {}
    routes = [Route("/static/{name}", _static(site))]
    routes += [Route(path, _answer(site, page), methods=["GET"]) for path, page in _PAGES.items()]
    routes += [Route(path, _answer_topic(site, page), methods=["GET"]) for path, page in _TOPIC_PAGES.items()]
    routes += [Route(path, _answer(site, page), methods=["POST"]) for path, page in forms.items()]
    routes += [Route(path, _answer_topic(site, page), methods=["POST"]) for path, page in topic_forms.items()]
    return routes


def _static(site: Site) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        found = static_file(request.path_params["name"])
        if found is None:
            shown = LogError(request.url.path, "there is no such file", "Begin at the overview.")
            return show_error(site, request, shown, 404)
        return found

    return answer


def _answer(site: Site, page: _Page) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        try:
            return page(site, request)
        except LogError as error:
            return show_error(site, request, error, status_of(request, error))

    return answer


def _answer_topic(site: Site, page: _TopicPage) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        name: str = request.path_params["topic"]
        try:
            return page(site, request, name)
        except LogError as error:
            status = status_of(request, error)
            return show_error(site, request, error, status, "" if status == 404 else name)

    return answer


def status_of(request: Request, error: LogError) -> int:
    """The status of HTTP for an error of a page or a form."""
    if isinstance(error, TopicError):
        return 404
    if isinstance(error, ConfigError | OffsetOutOfRangeError):
        return 400
    return 409 if request.method == "POST" else 200
