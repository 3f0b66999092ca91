"""The forms that alter a setting of a topic and delete a group, the page of a change, and the forms of the login.

Each change runs in a thread of its own (background/running_changes.py), and is reported on standard error.
"""

from __future__ import annotations

import json
from urllib.parse import unquote

from lakelog.optional import optional
from lakelog.ui.access.guard import LOGIN, form_of, session_of
from lakelog.ui.access.sessions import same_token
from lakelog.ui.background.running_changes import Change, Outcome
from lakelog.ui.group_pages import as_entered, find_consumer
from lakelog.ui.parameters import MOST_SHOWN, BadParameterError
from lakelog.ui.rendering import Look, address, set_cookie, show, show_error
from lakelog.ui.site import Site
from storage_engine.config import topic_key
from storage_engine.errors import LogError, StateError
from storage_engine.topic.readers.consumer_files import forget, read_consumers

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response


def alter_setting(site: Site, request: Request, name: str) -> Response:
    """The form on the page `/topics/TOPIC/settings`: set a key, or set it back to its default.

    Raises:
        ConfigError: the key is unknown, or the value is not allowed. Nothing was changed.
        UnknownTopicError: there is no such topic.
        ConflictError: another change is running. Nothing was changed.
        StorageError: the change could not be written.
    """
    form = form_of(request)
    key = form.required("key", "Choose a key.")
    declared = topic_key(key, form.text("value"), "field key")
    value = None
    if form.text("default") != "1":
        value = form.required("value", "Enter a value, or choose the default.")
        declared.parse(value, f"field value, key {declared.key}")
    shown_value = "its default" if value is None else value

    def alter() -> Outcome:
        from storage_engine.topic.kafka.view import settle_committed  # slow, and the login does not need it

        topics, problems = site.exact_topics(), list[str]()
        topics.state(name)
        topics.alter(name, None, {declared.key: value})
        site.plans.forget(name)
        settle_committed(topics, (name,), problems.append)
        return Outcome([f"topic {name}: {declared.key} was set to {shown_value} on a page of this server"], problems)

    what = f"set {declared.key} to {shown_value}"
    change = site.changes.begin(what, name, json.dumps(["setting", name, declared.key, value]), alter)
    return answer_of(site, request, change, address("topics", name, "settings", done=1, key=declared.key))


def delete_group(site: Site, request: Request) -> Response:
    """The form on the page of a group: delete the group of one topic. The user must enter the name of the group. The form
    has the name with percent signs, because a page shows control characters in another form.

    Raises:
        ConfigError: a field is wrong, or the entered name is another one.
        StateError: the group has an active member.
        UnknownTopicError, UnknownConsumerError: there is no such topic or group.
        ConflictError: another change is running.
        StorageError: the change could not be written.
    """
    form = form_of(request)
    topic = form.required("topic", "Send the form of the page of a group.")
    name = unquote(form.required("name", "Send the form of the page of a group."))
    if as_entered(form.text("confirmed") or "") != as_entered(name):
        raise BadParameterError(
            "field confirmed", "is not the name of the group", "Enter the name of the group exactly."
        )

    def delete() -> Outcome:
        topics = site.topics()
        consumer = find_consumer(read_consumers(topics.storage, topics.state(topic)), topic, name)
        if consumer.is_active(site.now_ms()):
            raise StateError(f"group {name}", "has an active member", "Stop this member first.")
        forget(topics.storage, topic, name)
        site.plans.forget(topic)
        return Outcome([f"topic {topic}: group {name} was deleted on a page of this server"])

    what = f"delete the group {name}"
    change = site.changes.begin(what, topic, json.dumps(["group", topic, name]), delete)
    return answer_of(site, request, change, address("topics", topic, "groups"))


def answer_of(site: Site, request: Request, change: Change, after: str | None = None) -> Response:
    """The answer to a form that has begun a change.

    Args:
        after: the address of the page that shows the changed value. By default, the page of the change is shown.

    Raises:
        LogError: the change has failed.
    """
    if not site.changes.wait(change, site.patience_seconds):
        return RedirectResponse(address("changes", change.id), 303)
    if change.error is not None:
        raise change.error.with_traceback(None)  # otherwise each request would add to the traceback
    if after is not None and change.outcome is not None and not change.outcome.problems:
        return RedirectResponse(after, 303)
    return _show_change(site, request, change)


def change_page(site: Site, request: Request) -> Response:
    """The page `/changes/ID`: whether a change is running, and its outcome after that."""
    name: str = request.path_params["change"]
    change = site.changes.find(name)
    if change is None:
        unknown = LogError(
            f"change {name[:MOST_SHOWN]}", "this server does not know the change",
            "The server was started again, or the change is old. The history of the topic shows what was done.",
        )  # fmt: skip
        return show_error(site, request, unknown, 404)
    return _show_change(site, request, change)


def _show_change(site: Site, request: Request, change: Change) -> Response:
    is_running = change.ended_ms is None
    look = Look(f"Change: {change.what}", change.topic, is_unfinished=is_running, change=change.id)
    return show(site, request, "change", look, {"change": change})


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
