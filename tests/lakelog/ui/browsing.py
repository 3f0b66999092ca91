"""A root with its pages, and a browser without scripts: it reads pages, follows links and sends forms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import unescape
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import unquote, urlencode

import pyarrow as pa
from deltalake import write_deltalake
from starlette.types import ASGIApp, Message

from lakelog.ui.access.options import UiOptions
from lakelog.ui.application import application
from lakelog.ui.site import Site
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.broker_settings import BrokerSettings
from storage_engine.topic.chain.topic_state import TopicState
from tests.lakelog.metrics.roots import DAY, HOUR, WatchedRoot
from tests.lakelog.report.html_tables import tables
from tests.storage_engine.record_tables import Row, to_table

PORT = 8787
ADDRESS = f"http://127.0.0.1:{PORT}"
PATIENCE_SECONDS = 60
"""So long does a page wait for work in the background, so that the tests see the result at once."""
TOKEN = "correct horse battery staple"


class DefectError(Exception):
    """A defect of the server, which a test has made."""


class Answer:
    """An answer of the server."""

    def __init__(self, status: int, headers: Mapping[str, str], text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def tables(self) -> dict[str, list[dict[str, str]]]:
        """The rows of the tables, by caption."""
        return tables(self.text)

    @property
    def facts(self) -> dict[str, str]:
        """The terms of the lists of facts, with their descriptions."""
        found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", self.text, re.DOTALL)
        return {unescape(name): unescape(re.sub("<[^>]*>", "", value)) for name, value in found}

    @property
    def words(self) -> str:
        """The text that a person sees."""
        reader = _Words()
        reader.feed(self.text)
        return " ".join("".join(reader.found).split())

    @property
    def links(self) -> list[str]:
        """The targets of the links, in order."""
        return [unescape(each) for each in re.findall(r'<a [^>]*?href="([^"]*)"', self.text)]


def hidden_fields(text: str) -> dict[str, str]:
    """The hidden fields of a form."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text)
    return {name: unescape(value) for name, value in found}


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(data)


class Browser:
    """Keeps cookies. Redirections are not followed."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.cookies: dict[str, str] = {}
        self._app: ASGIApp = application(site)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, headers)

    def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """Send fields as a browser does, without those of a page."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.request(
            "POST", path, kind | ({"Origin": ADDRESS} if headers is None else dict(headers)), urlencode(fields)
        )

    def send(self, page: str, action: str, **fields: str) -> Answer:
        """Open a page, and send the form with this action: its hidden fields and the given ones."""
        text = self.get(page).text
        form = re.search(rf'<form method="post" action="{re.escape(action)}".*?</form>', text, re.DOTALL)
        assert form is not None, text
        return self.post(action, hidden_fields(form[0]) | fields)

    def request(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> Answer:
        """One request, as the server passes it to the application."""
        path, _, query = path.partition("?")
        given = {"host": f"127.0.0.1:{PORT}"} | {name.lower(): value for name, value in (headers or {}).items()}
        if self.cookies:
            given.setdefault("cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value],
            "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", PORT),
        }  # fmt: skip
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body.encode(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        async def answer() -> None:
            await self._app(scope, receive, send)

        with suppress(DefectError):  # the server reports it, and the answer has a page
            asyncio.run(answer())
        start = sent[0]
        found = [(name.decode(), value.decode("latin-1")) for name, value in start["headers"]]
        for name, value in found:
            if name == "set-cookie":
                self.cookies |= {each.key: each.value for each in SimpleCookie(value).values()}
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return Answer(start["status"], dict(found), text)


class PagesRoot(WatchedRoot):
    """A root, its clock, and the lines that the server has reported."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.warnings: list[str] = []

    def site(self, **options: object) -> Site:
        chosen = UiOptions(port=PORT, **options)  # type: ignore[arg-type]
        return Site(self.topics, BrokerSettings(), chosen, self.warnings.append, PATIENCE_SECONDS)

    def browser(self, **options: object) -> Browser:
        return Browser(self.site(**options))

    def make_due(self, partitions: int = 1) -> PagesRoot:
        """Create the topic `orders`, of which retention deletes two segments of partition 0, and the topic `quiet`, in which
        nothing is to be done."""
        self.topic("orders", partitions, retention_ms=str(DAY))
        for age in (3 * DAY, 2 * DAY, HOUR):
            self.append("orders", age, age)
        self.topic("quiet")
        return self

    def append_rows(self, name: str, *rows: Row, partition: int = 0) -> TopicState:
        chain = self.topics.chain(name)
        config = self.topics.config(chain.newest())
        return append_records(self.storage, chain, config, self.clock, to_table(rows), partition).state

    def dead_letters(self, kind: str, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        table = pa.Table.from_pylist(list(rows))
        types = {each.name: pa.string() if pa.types.is_null(each.type) else each.type for each in table.schema}
        table = table.cast(pa.schema(types))  # the columns of Lakelog's tables have a type, also without values
        write_deltalake(self.folder / f"tables/dead_letters/{kind}/{name}", table, mode="append")

    def segment_file(self, name: str, number: int = 0, suffix: str = ".log") -> Path:
        """A file of the first segment of a partition."""
        topic_id = self.topics.state(name).topic_id
        return min((self.folder / "data" / topic_id / str(number)).glob(f"*{suffix}"))
