"""The forms that alter a setting of a topic, and delete a group. Each change is reported on standard error."""

from __future__ import annotations

from lakelog.optional import optional
from lakelog.ui.access.guard import LOGIN, form_of, session_of
from lakelog.ui.access.sessions import same_token
from lakelog.ui.group_pages import find_consumer
from lakelog.ui.parameters import BadParameterError
from lakelog.ui.rendering import Look, address, set_cookie, show
from lakelog.ui.site import Site
from storage_engine.config import topic_key
from storage_engine.errors import StateError
from storage_engine.topic.kafka.view import settle_committed
from storage_engine.topic.readers.consumer_files import forget, read_consumers

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response


def alter_setting(site: Site, request: Request, name: str) -> Response:
    """The form on the page `/topics/TOPIC/settings`: set a key, or set it back to its default.

    Raises:
        ConfigError: the key is unknown, or the value is not allowed. Nothing was changed.
        UnknownTopicError: there is no such topic.
        ConflictError: another change is running.
        StorageError: the change could not be written.
    """
    form = form_of(request)
    key = form.required("key", "Choose a key.")
    declared = topic_key(key, form.text("value"), "field key")
    value = None
    if form.text("default") != "1":
        value = form.required("value", "Enter a value, or choose the default.")
        declared.parse(value, f"field value, key {declared.key}")
    topics = site.exact_topics()
    topics.state(name)
    with site.change(f"topic {name}"):
        topics.alter(name, None, {declared.key: value})
        settle_committed(topics, (name,), site.warn)
    site.warn(
        f"topic {name}: {declared.key} was set to {'its default' if value is None else value} on a page of this server"
    )
    return RedirectResponse(address("topics", name, "settings", done=1, key=declared.key), 303)


def delete_group(site: Site, request: Request) -> Response:
    """The form on the page of a group: delete the group of one topic. The user must enter the name of the group.

    Raises:
        ConfigError: a field is wrong, or the entered name is another one.
        StateError: the group has an active member.
        UnknownTopicError, UnknownConsumerError: there is no such topic or group.
        ConflictError: another change is running.
        StorageError: the change could not be written.
    """
    form = form_of(request)
    topic = form.required("topic", "Send the form of the page of a group.")
    name = form.required("name", "Send the form of the page of a group.")
    topics = site.topics()
    consumer = find_consumer(read_consumers(topics.storage, topics.state(topic)), topic, name)
    if form.text("confirmed") != name:
        raise BadParameterError(
            "field confirmed", "is not the name of the group", "Enter the name of the group exactly."
        )
    if consumer.is_active(site.now_ms()):
        raise StateError(f"group {name}", "has an active member", "Stop this member first.")
    with site.change(f"group {name}"):
        forget(topics.storage, topic, name)
    site.warn(f"topic {topic}: group {name} was deleted on a page of this server")
    return RedirectResponse(address("topics", topic, "groups"), 303)


def login_page(site: Site, request: Request) -> Response:
    """The page `/login`, which asks for the token of the server."""
    session = session_of(request)
    if site.options.token is None or (session is not None and session.is_logged_in):
        return RedirectResponse("/", 303)
    values = {"next": request.query_params.get("next", "/"), "is_wrong": False}
    return show(site, request, "login", Look("Log in", has_form=True), values)


def login(site: Site, request: Request) -> Response:
    """The form on the page `/login`. With the right token, a new session begins, so that nobody who knew the cookie of
    the old session gets into the new one."""
    form = form_of(request)
    target = form.text("next") or "/"
    if site.options.token is None:
        return RedirectResponse("/", 303)
    if not same_token(form.text("token") or "", site.options.token):
        values = {"next": target, "is_wrong": True}
        return show(site, request, "login", Look("Log in", has_form=True), values, 403)
    response = RedirectResponse(target if is_own_address(target) else "/", 303)
    set_cookie(site, response, site.sessions.begin(is_logged_in=True).cookie)
    return response


def logout_page(site: Site, request: Request) -> Response:
    """The page `/logout`, with the form that ends the session."""
    if site.options.token is None:
        return RedirectResponse("/", 303)
    return show(site, request, "logout", Look("Log out", has_form=True), {})


def logout(site: Site, request: Request) -> Response:
    """The form on the page `/logout`: end the session."""
    session = session_of(request)
    if session is not None:
        site.sessions.end(session)
    return RedirectResponse(LOGIN, 303)


def is_own_address(target: str) -> bool:
    """Whether a redirection to an address stays on this server."""
    return target.startswith("/") and target[1:2] not in ("/", "\\") and target.isascii() and target.isprintable()
