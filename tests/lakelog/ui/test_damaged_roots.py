"""Each page over a root with each kind of damage: no page ends with a server error, and the undamaged topic is shown."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.lakelog.metrics.roots import DAY, HOUR
from tests.lakelog.ui.browsing import PagesRoot, hidden_fields

pytestmark = pytest.mark.posix("the files of the root are changed")
TABS = ("", "/records", "/records?offset=0", "/groups", "/dead-letters", "/plan", "/history", "/settings")
PAGES = ("/", "/groups", "/dead-letters", "/plans", "/settings", "/group?topic=hurt&name=billing")


def flip(root: PagesRoot, pattern: str, position: float = 0.5) -> None:
    path = max(root.folder.glob(pattern))
    data = bytearray(path.read_bytes())
    data[int(len(data) * position)] ^= 1
    path.write_bytes(data)


def data_of(root: PagesRoot) -> str:
    return f"data/{root.topics.state('hurt').topic_id}"


def broken_folder(root: PagesRoot) -> None:
    path = root.state_file("hurt")
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[PagesRoot], object]] = {
    "a byte of the newest state": lambda root: root.damage("hurt"),
    "an empty newest state": lambda root: root.state_file("hurt").write_bytes(b""),
    "a folder in the place of the newest state": broken_folder,
    "a byte of an older state": lambda root: flip(root, "meta/hurt/00000000000000000001.json"),
    "no older state": lambda root: (root.folder / "meta/hurt/00000000000000000001.json").unlink(),
    "no state at all": lambda root: [path.unlink() for path in (root.folder / "meta/hurt").glob("0*.json")],
    "no segment file": lambda root: [path.unlink() for path in (root.folder / data_of(root)).glob("*/*.log")],
    "an empty segment file": lambda root: [path.write_bytes(b"") for path in (root.folder / data_of(root)).glob("*/*.log")],
    "a byte of a batch": lambda root: flip(root, f"{data_of(root)}/0/*.log", 0.9),
    "a byte of the header of a batch": lambda root: flip(root, f"{data_of(root)}/0/*.log", 0.1),
    "no folder of data": lambda root: shutil.rmtree(root.folder / data_of(root)),
    "a byte of a file of a group": lambda root: flip(root, "meta/hurt/groups/*.json"),
    "an empty file of a group": lambda root: max(root.folder.glob("meta/hurt/groups/*.json")).write_bytes(b""),
    "a folder in the place of a group": lambda root: (root.folder / "meta/hurt/groups/x-00000000.json").mkdir(),
    "a file in the place of the folder of groups": lambda root: (
        shutil.rmtree(root.folder / "meta/hurt/groups"), (root.folder / "meta/hurt/groups").write_bytes(b"")
    ),
    "a table that is no table": lambda root: (
        (folder := root.folder / "tables/dead_letters/export/hurt/_delta_log").mkdir(parents=True),
        (folder / f"{0:020d}.json").write_bytes(b"{"),
    ),
    "damaged broker settings": lambda root: (
        (root.folder / "meta/@broker").mkdir(exist_ok=True), (root.folder / "meta/@broker/settings.json").write_bytes(b"{"),
    ),
    "a damaged checkpoint of the view": lambda root: (
        (root.folder / "log").mkdir(exist_ok=True),
        (root.folder / "log/replication-offset-checkpoint").write_bytes(b"0\n1\nhurt 0 999999\n"),
    ),
    "an unreadable checkpoint of the view": lambda root: (
        (root.folder / "log").mkdir(exist_ok=True), (root.folder / "log/replication-offset-checkpoint").write_bytes(b"x"),
    ),
    "a root without topics": lambda root: shutil.rmtree(root.folder / "meta"),
    "no root": lambda root: shutil.rmtree(root.folder),
}  # fmt: skip
NO_OTHER_TOPIC = {"a root without topics", "no root", "an unreadable checkpoint of the view"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [False, True], ids=["before the first look", "after the first look"])
def test_no_page_ends_with_a_server_error(root: PagesRoot, damage: str, is_open: bool) -> None:
    for name in ("hurt", "well"):
        root.topic(name, retention_ms=str(DAY))
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


def test_a_missing_segment_is_named_on_the_page_of_the_topic(root: PagesRoot) -> None:
    root.topic("hurt")
    root.append("hurt", HOUR)
    file = root.segment_file("hurt")
    file.unlink()
    page = root.browser().get("/topics/hurt")
    assert (
        f"damaged, hurt-0: {file.relative_to(root.folder)} is missing. Restore this file from a backup." in page.words
    )


def test_a_form_over_damage_is_refused(root: PagesRoot) -> None:
    root.topic("hurt")
    browser = root.browser(allow_changes=True)
    page = browser.get("/topics/hurt/settings")
    root.damage("hurt")
    answer = browser.post("/topics/hurt/settings", hidden_fields(page.text) | {"key": "retention.ms", "value": "1"})
    assert (answer.status, answer.facts["place"]) == (409, "meta/hurt/00000000000000000000.json at position 0")
