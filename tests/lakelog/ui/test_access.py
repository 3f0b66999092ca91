"""Who may see the pages: hosts, tokens, sessions, the origins of forms, and the headers of each answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakelog.cli.options import listen_address
from lakelog.ui.access.guard import MOST_BYTES, POLICY
from lakelog.ui.access.options import DEFAULT_LISTEN, UiOptions, check_options, read_token
from lakelog.ui.access.sessions import SESSION_SECONDS, Sessions
from lakelog.ui.changes import is_own_address
from storage_engine.errors import NotFoundError, UsageError
from tests.lakelog.ui.browsing import ADDRESS, TOKEN, Browser, PagesRoot, hidden_fields

pytestmark = pytest.mark.posix("the files of the root are changed")
SETTINGS = "/topics/orders/settings"
EVERY_PAGE = [
    "/", "/groups", "/group?topic=orders&name=billing", "/dead-letters", "/plans", "/settings", "/topics/orders",
    "/topics/orders/records", "/topics/orders/groups", "/topics/orders/dead-letters", "/topics/orders/plan",
    "/topics/orders/history", SETTINGS,
]  # fmt: skip


@pytest.fixture
def orders(root: PagesRoot) -> PagesRoot:
    root.topic("orders")
    root.append("orders", 1)
    root.group("orders", "billing", {0: 1})
    return root


def log_in(browser: Browser, token: str = TOKEN, page: str = "/login") -> int:
    return browser.send(page, "/login", token=token).status


# --- Headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [*EVERY_PAGE, "/unknown", "/?page=x", "/static/ui.css", "/static/refresh.js", "/login"]
)
def test_every_answer_has_the_headers(orders: PagesRoot, path: str) -> None:
    answer = orders.browser().get(path)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers


def test_the_policy_allows_only_this_server() -> None:
    assert POLICY == (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


@pytest.mark.parametrize("path", EVERY_PAGE)
def test_no_page_has_an_inline_script_or_style_or_a_link_to_another_host(orders: PagesRoot, path: str) -> None:
    text = orders.browser(allow_changes=True, show_values=True).get(path).text
    assert text.count("<script") == text.count('<script src="/static/refresh.js" defer></script>') == 1
    assert "<style" not in text
    assert " style=" not in text
    assert not re.search(r"<[a-z][^<>]*\son[a-z]+=", text)
    assert "//" not in text.replace(str(orders.folder), "")


# --- Hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8787", 200), ("localhost:8787", 200), ("LOCALHOST", 200), ("[::1]:8787", 200), ("logs.lan", 200),
        ("logs.lan:80", 200), ("evil.example", 400), ("evil.example:8787", 400), ("127.0.0.1.evil.example", 400),
        ("logs.lan.evil.example", 400), ("", 400), ("127.0.0.1:8787@evil.example", 400), ("192.168.0.5:8787", 400),
    ],
)  # fmt: skip
def test_a_request_must_name_this_server(orders: PagesRoot, host: str, status: int) -> None:
    browser = orders.browser(host_names=("logs.lan",))
    answer = browser.get("/", {"Host": host})
    assert answer.status == status
    if status == 400:
        assert answer.facts["place"] == "header Host"
        assert "orders" not in answer.text
        assert str(orders.folder) not in answer.text


def test_the_bound_address_is_a_name_of_the_server_but_that_of_all_networks_is_not() -> None:
    assert "192.168.0.5" in UiOptions(host="192.168.0.5").allowed_hosts
    assert "[fd00::5]" in UiOptions(host="fd00::5").allowed_hosts
    assert UiOptions(host="0.0.0.0").allowed_hosts == UiOptions(host="::").allowed_hosts == {
        "127.0.0.1", "localhost", "[::1]"
    }  # fmt: skip


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.5", "logs.lan"])
def test_an_address_that_others_can_reach_requires_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="other hosts can reach this address, and no token is given"):
        check_options(UiOptions(host=host))
    check_options(UiOptions(host=host, token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_an_address_of_this_host_requires_no_token(host: str) -> None:
    check_options(UiOptions(host=host))


@pytest.mark.parametrize("name", ["http://logs.lan", "logs.lan:80", "*", "", "a b"])
def test_a_name_of_the_host_must_be_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="--host-name"):
        check_options(UiOptions(host_names=(name,)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80)), (":9", ("0.0.0.0", 9)), ("h:65535", ("h", 65535))],
)
def test_an_address_to_listen_on_is_read(text: str, expected: tuple[str, int]) -> None:
    assert listen_address(text, DEFAULT_LISTEN) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8787",
        "host",
        "host:",
        "host:x",
        "host:65536",
        "::1:80",
        "a..b:80",
        f"{'x' * 64}:80",
        "[::1:80",
        "::1]:80",
        "h:٣",
    ],
)
def test_a_wrong_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        listen_address(text, DEFAULT_LISTEN)


# --- The token --------------------------------------------------------------------------------------------------------


def test_a_token_is_the_first_line_of_a_file_or_a_variable(tmp_path: Path) -> None:
    file, warnings = tmp_path / "token", list[str]()
    file.write_text(f"{TOKEN}\nmore\n")
    file.chmod(0o600)
    assert read_token(file, {}, warnings.append) == TOKEN
    assert read_token(None, {"LAKELOG_UI_TOKEN": TOKEN}) == TOKEN
    assert read_token(None, {}) is None
    assert warnings == []
    file.chmod(0o644)
    read_token(file, {}, warnings.append)
    assert warnings == [f"--token {file}: other users of this host can read the token. Run: chmod 600 {file}"]


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "tabs\tare no printable characters"])
def test_a_token_that_can_be_guessed_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    with pytest.raises(UsageError) as refused:
        read_token(file, {})
    assert token not in str(refused.value) or not token
    with pytest.raises(UsageError):
        read_token(None, {"LAKELOG_UI_TOKEN": token})


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be read"):
        read_token(tmp_path / "missing", {})


@pytest.mark.parametrize("path", EVERY_PAGE)
def test_without_the_token_no_page_is_shown(orders: PagesRoot, path: str) -> None:
    browser = orders.browser(token=TOKEN)
    answer = browser.get(path)
    assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/login")
    assert answer.text == ""
    assert str(orders.folder) not in browser.get("/login").text
    assert log_in(browser, page=answer.headers["location"]) == 303
    assert browser.get(path).status == 200


def test_a_login_leads_to_the_page_that_was_wanted(orders: PagesRoot) -> None:
    browser = orders.browser(token=TOKEN)
    wanted = "/group?topic=orders&name=billing"
    answer = browser.send(browser.get(wanted).headers["location"], "/login", token=TOKEN)
    assert answer.headers["location"] == wanted


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "", "/\r\nX: y"]
)
def test_a_login_never_leads_to_another_server(orders: PagesRoot, target: str) -> None:
    assert not is_own_address(target)
    browser = orders.browser(token=TOKEN)
    fields = hidden_fields(browser.get("/login").text) | {"next": target, "token": TOKEN}
    assert browser.post("/login", fields).headers["location"] == "/"


def test_a_wrong_token_is_refused_and_shown_nowhere(orders: PagesRoot) -> None:
    browser = orders.browser(token=TOKEN)
    answer = browser.send("/login", "/login", token="a wrong guess of it")
    assert answer.status == 403
    assert "This is not the token of this server." in answer.words
    assert "a wrong guess" not in answer.text
    assert TOKEN not in answer.text
    assert browser.get("/").status == 303


def test_the_cookie_is_strict_and_hidden_from_scripts_and_new_after_the_login(orders: PagesRoot) -> None:
    browser = orders.browser(token=TOKEN)
    before = browser.get("/login").headers["set-cookie"]
    answer = browser.send("/login", "/login", token=TOKEN)
    cookie = answer.headers["set-cookie"]
    for each in (before, cookie):
        assert "httponly" in each.lower()
        assert "samesite=strict" in each.lower()
        assert "path=/;" in each.lower()
        assert "domain" not in each.lower()
    assert cookie.startswith("lakelog_ui_8787=")
    assert cookie.partition(";")[0] != before.partition(";")[0]
    assert TOKEN not in cookie


def test_a_session_ends_with_the_logout_and_also_its_copy(orders: PagesRoot) -> None:
    browser = orders.browser(token=TOKEN)
    log_in(browser)
    copied = dict(browser.cookies)
    assert browser.send("/logout", "/logout").headers["location"] == "/login"
    browser.cookies = copied
    assert browser.get("/").status == 303


def test_a_session_ends_after_twelve_hours(orders: PagesRoot) -> None:
    browser = orders.browser(token=TOKEN)
    log_in(browser)
    orders.clock.advance(SESSION_SECONDS * 1000 - 1000)
    assert browser.get("/").status == 200
    orders.clock.advance(2000)
    assert browser.get("/").status == 303


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.replace(".0.", ".1."), lambda each: each[:-1], lambda each: "", lambda each: "...",
        lambda each: f"{each}0", lambda each: f"\xff.{each}",
    ],
)  # fmt: skip
def test_a_forged_cookie_is_no_session(change) -> None:
    sessions = Sessions(lambda: 1_700_000_000_000)
    session = sessions.begin(is_logged_in=False)
    assert sessions.find(session.cookie) == session
    assert sessions.find(change(session.cookie)) is None
    assert Sessions(lambda: 1_700_000_000_000).find(session.cookie) is None, "another server has another key"


# --- Forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "http://127.0.0.1:8788", "http://127.0.0.1", "https://localhost:8787", "ftp://127.0.0.1:8787",
     "http://127.0.0.1:8787.evil.example"],
)  # fmt: skip
def test_a_form_of_another_page_is_refused(orders: PagesRoot, origin: str | None) -> None:
    browser = orders.browser(allow_changes=True)
    fields = hidden_fields(browser.get(SETTINGS).text) | {"key": "retention.ms", "value": "1"}
    answer = browser.post(SETTINGS, fields, {"Origin": origin} if origin else {})
    assert (answer.status, answer.facts["place"]) == (403, "header Origin")
    assert orders.topics.state("orders").configs == {}


def test_a_form_is_accepted_with_the_name_under_which_the_browser_opened_the_page(orders: PagesRoot) -> None:
    browser = orders.browser(allow_changes=True, host_names=("logs.lan",))
    fields = hidden_fields(browser.get(SETTINGS).text) | {"key": "retention.ms", "value": "1"}
    behind_tls = {"Host": "logs.lan", "Origin": "https://logs.lan"}
    assert browser.post(SETTINGS, fields, behind_tls).status == 303


def test_a_form_needs_the_token_of_its_session(orders: PagesRoot) -> None:
    victim = orders.browser(allow_changes=True)
    attacker = Browser(victim.site)
    change = {"key": "retention.ms", "value": "1"}
    stolen = hidden_fields(attacker.get(SETTINGS).text)
    victim.get(SETTINGS)
    for fields in (change, change | {"form_token": ""}, change | {"form_token": "0" * 64}, change | stolen):
        answer = victim.post(SETTINGS, fields)
        assert (answer.status, answer.facts["place"]) == (403, "form")
    without_cookie = Browser(victim.site).post(SETTINGS, change | stolen)
    assert without_cookie.status == 403
    assert orders.topics.state("orders").configs == {}


def test_a_form_needs_a_login_if_the_server_has_a_token(orders: PagesRoot) -> None:
    browser = orders.browser(token=TOKEN, allow_changes=True)
    fields = hidden_fields(browser.get("/login").text) | {"key": "retention.ms", "value": "1"}
    answer = browser.post(SETTINGS, fields)
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert orders.topics.state("orders").configs == {}
    log_in(browser)
    assert browser.send(SETTINGS, SETTINGS, key="retention.ms", value="1").status == 303


def test_a_form_that_is_too_long_or_of_another_kind_is_refused(orders: PagesRoot) -> None:
    browser = orders.browser(allow_changes=True)
    fields = hidden_fields(browser.get(SETTINGS).text)
    assert browser.post(SETTINGS, fields | {"value": "x" * MOST_BYTES}).status == 403
    assert browser.post(SETTINGS, fields | {f"n{number}": "" for number in range(100)}).status == 403
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x", ""):
        answer = browser.request("POST", SETTINGS, {"Origin": ADDRESS, "Content-Type": kind}, "{}")
        assert (answer.status, answer.facts["place"]) == (403, "header Content-Type")


def test_pages_with_a_form_let_the_browser_name_their_origin(orders: PagesRoot) -> None:
    """With no-referrer, a browser sends a form with `Origin: null`."""
    browser = orders.browser(allow_changes=True, token=TOKEN)
    assert browser.get("/login").headers["referrer-policy"] == "same-origin"
    log_in(browser)
    assert browser.get(SETTINGS).headers["referrer-policy"] == "same-origin"
    assert browser.get("/").headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "POST"])
def test_other_methods_change_nothing(orders: PagesRoot, method: str) -> None:
    answer = orders.browser(allow_changes=True).request(method, "/topics/orders")
    assert answer.status in (403, 405)


def test_head_has_the_status_of_the_page(orders: PagesRoot) -> None:
    assert orders.browser().request("HEAD", "/topics/orders").status == 200
    assert orders.browser().request("HEAD", "/topics/none").status == 404
