"""Each page over a root with each kind of damage: no page ends with a server error, and the undamaged topic is shown."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from starlette.responses import Response

from lakelog.ui import application
from lakelog.ui.access.guard import POLICY
from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.ui.browsing import DefectError, PagesRoot, hidden_fields

pytestmark = pytest.mark.posix("the files of the root are changed")
TABS = ("", "/records", "/records?offset=0", "/groups", "/dead-letters", "/plan", "/history", "/settings")
PAGES = ("/", "/groups", "/dead-letters", "/plans", "/settings", "/group?topic=hurt&name=billing")


def flip(root: PagesRoot, pattern: str, position: float = 0.5) -> None:
    path = max(root.folder.glob(pattern))
    data = bytearray(path.read_bytes())
    data[int(len(data) * position)] ^= 1
    path.write_bytes(data)


def write(root: PagesRoot, pattern: str, data: bytes = b"") -> None:
    """Overwrite the files of a pattern. If there is none, the pattern is the name of a new file."""
    for path in list(root.folder.glob(pattern)) or [root.folder / pattern]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def remove(root: PagesRoot, pattern: str) -> None:
    for path in list(root.folder.glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def with_folder(root: PagesRoot, key: str) -> None:
    """Put a folder in the place of a file."""
    remove(root, key)
    (root.folder / key).mkdir(parents=True)


def with_file(root: PagesRoot, key: str) -> None:
    """Put a file in the place of a folder."""
    remove(root, key)
    write(root, key)


def data_of(root: PagesRoot) -> str:
    return f"data/{root.topics.state('hurt').topic_id}"


NEWEST, OLDER = "meta/hurt/00000000000000000003.json", "meta/hurt/00000000000000000002.json"
CHECKPOINT = "log/replication-offset-checkpoint"
DAMAGES: dict[str, Callable[[PagesRoot], None]] = {
    "a byte of the newest state": lambda root: flip(root, NEWEST),
    "an empty newest state": lambda root: write(root, NEWEST),
    "a folder in the place of the newest state": lambda root: with_folder(root, NEWEST),
    "a byte of an older state": lambda root: flip(root, OLDER),
    "no older state": lambda root: remove(root, OLDER),
    "no state at all": lambda root: remove(root, "meta/hurt/0*.json"),
    "no segment file": lambda root: remove(root, f"{data_of(root)}/*/*.log"),
    "an empty segment file": lambda root: write(root, f"{data_of(root)}/*/*.log"),
    "a byte of a batch": lambda root: flip(root, f"{data_of(root)}/0/*.log", 0.9),
    "a byte of the header of a batch": lambda root: flip(root, f"{data_of(root)}/0/*.log", 0.1),
    "no folder of data": lambda root: remove(root, data_of(root)),
    "a byte of a file of a group": lambda root: flip(root, "meta/hurt/groups/*.json"),
    "an empty file of a group": lambda root: write(root, "meta/hurt/groups/*.json"),
    "a folder in the place of a group": lambda root: with_folder(root, "meta/hurt/groups/x-00000000.json"),
    "a file in the place of the folder of groups": lambda root: with_file(root, "meta/hurt/groups"),
    "an empty report of an ingest": lambda root: write(root, "meta/@ingests/q.json"),
    "a folder in the place of a report": lambda root: with_folder(root, "meta/@ingests/q.json"),
    "a file in the place of the folder of reports": lambda root: with_file(root, "meta/@ingests"),
    "a table that is no table": lambda root: write(
        root, f"tables/dead_letters/export/hurt/_delta_log/{0:020d}.json", b"{"
    ),
    "damaged broker settings": lambda root: write(root, "meta/@broker/settings.json", b"{"),
    "a checkpoint of the view with later offsets": lambda root: write(root, CHECKPOINT, b"0\n1\nhurt 0 999999\n"),
    "an unreadable checkpoint of the view": lambda root: write(root, CHECKPOINT, b"x"),
    "a root without topics": lambda root: remove(root, "meta"),
    "no root": lambda root: shutil.rmtree(root.folder),
}
NO_OTHER_TOPIC = {"a root without topics", "no root"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [False, True], ids=["before the first look", "after the first look"])
def test_no_page_ends_with_a_server_error(root: PagesRoot, damage: str, is_open: bool) -> None:
    for name in ("hurt", "well"):
        root.topic(name, retention_ms=str(DAY))
        root.take_over(name)
        for age in (3 * DAY, HOUR):
            root.append(name, age, age)
        root.group(name, "billing", {0: 1})
    browser = root.browser(allow_changes=True, show_values=True)
    if is_open:
        browser.get("/")
    DAMAGES[damage](root)

    answers = {path: browser.get(path) for path in (*PAGES, *(f"/topics/hurt{tab}" for tab in TABS))}
    well = {path: browser.get(path) for path in (f"/topics/well{tab}" for tab in TABS)}

    for path, answer in {**answers, **well}.items():
        assert answer.status < 500, path
        assert '<main id="main"' in answer.text, path
    if damage not in NO_OTHER_TOPIC:
        assert {answer.status for answer in well.values()} == {200}
        assert well["/topics/well"].tables["Partitions"][0]["high watermark"] == "4"
        assert [row["offset"] for row in well["/topics/well/records"].tables["Records of partition 0"]] == [
            "0",
            "1",
            "2",
            "3",
        ]
        assert "well" in [row["topic"] for row in answers["/"].tables["Topics"]]


def test_a_damaged_topic_shows_the_place_and_what_to_do(root: PagesRoot) -> None:
    root.topic("hurt")
    root.damage("hurt")
    browser = root.browser()
    for tab in TABS:
        page = browser.get(f"/topics/hurt{tab}")
        assert page.status == 200
        assert page.facts["place"] == "meta/hurt/00000000000000000000.json at position 0"
        assert page.facts["found"].startswith("expected bytes with digest ")
        assert "verify --repair" in page.facts["what to do"]
        assert "/topics/hurt/history" in page.links


def test_a_damaged_report_of_an_ingest_asks_for_attention_and_hides_nothing(root: PagesRoot) -> None:
    root.topic("hurt")
    root.take_over("hurt")
    root.append("hurt", HOUR)
    browser = root.browser()
    root.report_ingest("hurt", 1_200)
    assert "1,200 records behind its source" in browser.get("/topics/hurt").facts["ingest"]
    assert "Nothing asks for attention." in browser.get("/").words
    root.tear_report("hurt")
    error = "meta/@ingests/q.json at position "
    overview, page = browser.get("/"), browser.get("/topics/hurt")
    assert f"damaged, hurt: {error}" in overview.words
    assert f"not readable, hurt: {error}" in page.words
    assert page.tables["Partitions"][0]["high watermark"] == "1"
    assert "ingest" not in page.facts
    root.hide_reports()
    overview, page = browser.get("/"), browser.get("/topics/hurt")
    assert "not readable: " in overview.words
    assert "meta/@ingests: Too many levels of symbolic links" in overview.words
    assert "meta/@ingests/q.json: Too many levels of symbolic links" in page.words
    assert [row["topic"] for row in overview.tables["Topics"]] == ["hurt"]


def test_a_missing_segment_is_named_on_the_page_of_the_topic(root: PagesRoot) -> None:
    root.topic("hurt")
    root.append("hurt", HOUR)
    file = root.segment_file("hurt")
    file.unlink()
    page = root.browser().get("/topics/hurt")
    assert (
        f"damaged, hurt-0: {file.relative_to(root.folder)} is missing. Restore this file from a backup." in page.words
    )


def test_a_defect_of_the_server_shows_no_contents(root: PagesRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Response:
        raise DefectError("the content of a record")

    monkeypatch.setitem(application._PAGES, "/", broken)
    browser = root.browser()
    page = browser.get("/")
    assert (page.status, page.facts["found"]) == (500, "the server has a defect")
    assert page.headers["content-security-policy"] == POLICY
    assert "content of a record" not in page.text + "".join(root.warnings)
    assert root.warnings[0].startswith(f"/: a defect: DefectError in {__file__}, line ")
    assert browser.get("/settings").status == 200


def test_a_form_over_damage_is_refused(root: PagesRoot) -> None:
    root.topic("hurt")
    browser = root.browser(allow_changes=True)
    page = browser.get("/topics/hurt/settings")
    root.damage("hurt")
    answer = browser.post("/topics/hurt/settings", hidden_fields(page.text) | {"key": "retention.ms", "value": "1"})
    assert (answer.status, answer.facts["place"]) == (409, "meta/hurt/00000000000000000000.json at position 0")
