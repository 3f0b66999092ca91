"""Groups: at any time only one member can commit, and a new member continues at the position of the last commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count, pairwise

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import AmbiguousPutError, FencedError, StateError
from storage_engine.log.holds import Holds
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.consumer_files import (
    ACTIVE_MS,
    EXPORT_KIND,
    STREAM_KIND,
    Consumer,
    KeptConsumers,
    PositionSample,
    consumer_key,
    forget,
    group_folder,
    put_positions,
    read_consumers,
)
from storage_engine.topic.readers.membership import Membership, find_group, join, set_positions
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.storage_engine.topic.wrapped_storage import BeforeEachCall, PlainStorage
from tests.stores import storage_at

START = 1_700_000_000_000
Come = Callable[[Storage, TopicState], None]


@pytest.fixture
def topics(tmp_path) -> Topics:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(START))
    state = topics.create("t", 2, {})
    rows = [Row(b"k", b"v", (), START) for _ in range(5)]
    append_records(topics.storage, topics.chain("t"), topics.config(state), topics.clock, to_table(rows), 0)
    return topics


def state_of(topics: Topics) -> TopicState:
    return topics.state("t")


def member_of(topics: Topics, member: str = "m", **others: bool) -> Membership:
    return join(topics.storage, state_of(topics), "g", member, "host", START, **others)


def group_of(topics: Topics) -> Consumer:
    found = find_group(topics.storage, state_of(topics), "g")
    assert found is not None
    return found


def files_of(topics: Topics) -> list[str]:
    return [file.key for file in topics.storage.list(group_folder("t"))]


def test_a_member_commits_and_the_next_one_goes_on_there(topics: Topics) -> None:
    first = member_of(topics)
    assert first.consumer.positions == {}
    first.commit(state_of(topics), {1: 0, 0: 3}, START + 5)
    second = member_of(topics, "n")
    assert second.consumer.positions == {0: 3, 1: 0}
    assert files_of(topics) == [consumer_key("t", "g", 2)]
    assert read_consumers(topics.storage, state_of(topics)).known == (second.consumer,)


def test_the_file_has_everything_about_the_group(topics: Topics) -> None:
    member_of(topics).commit(state_of(topics), {0: 3}, START + 5)
    (found,) = read_consumers(topics.storage, state_of(topics)).known
    assert found == Consumer(
        name="g", kind="group", topic_id=state_of(topics).topic_id, positions={0: 3}, registered_ms=START,
        updated_ms=START + 5, holds_back=False, generation=1, member="m", host="host", seen_ms=START + 5,
        samples=(PositionSample(START, 0, 5), PositionSample(START + 5, 3, 5)),
    )  # fmt: skip


def test_a_member_that_another_one_followed_is_fenced(topics: Topics) -> None:
    first = member_of(topics)
    second = member_of(topics, "n")
    second.commit(state_of(topics), {0: 2}, START)
    with pytest.raises(FencedError, match="has generation 2, found a member of generation 1"):
        first.commit(state_of(topics), {0: 5}, START)
    assert group_of(topics) == second.consumer


def test_a_member_whose_group_was_deleted_is_fenced(topics: Topics) -> None:
    member = member_of(topics)
    forget(topics.storage, "t", "g")
    with pytest.raises(FencedError, match="was deleted"):
        member.commit(state_of(topics), {0: 5}, START)
    assert files_of(topics) == []


class _BetweenReplaceAndCheck(PlainStorage):
    """Calls something once, before or after the next replace."""

    before = after = staticmethod(lambda: None)

    def replace(self, key, data) -> None:
        before, self.before = self.before, lambda: None
        before()
        super().replace(key, data)
        after, self.after = self.after, lambda: None
        after()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_during_a_join_is_fenced_or_found(topics: Topics, moment: str) -> None:
    storage = _BetweenReplaceAndCheck(topics.storage)
    first = join(storage, state_of(topics), "g", "m", "host", START)
    second: list[Membership] = []
    setattr(storage, moment, lambda: second.append(member_of(topics, "n")))
    with pytest.raises(FencedError):
        first.commit(state_of(topics), {0: 4}, START)
    found = group_of(topics)
    assert found == second[0].consumer
    assert found.positions == ({} if moment == "before" else {0: 4})


def test_a_commit_between_a_joins_read_and_its_put_is_taken_over(topics: Topics) -> None:
    first = member_of(topics)

    class CommitsFirst(PlainStorage):
        def put_new(self, key, data) -> None:
            first.commit(state_of(topics), {0: 4}, START)
            super().put_new(key, data)

    second = join(CommitsFirst(topics.storage), state_of(topics), "g", "n", "host", START)
    assert second.consumer.positions == {0: 4}
    assert group_of(topics) == second.consumer


class _KilledError(BaseException):
    """The process ends before its next call."""


def take_over(storage: Storage, state: TopicState) -> None:
    join(storage, state, "g", "n", "host", START + ACTIVE_MS)


def reset(storage: Storage, state: TopicState) -> None:
    set_positions(storage, state, "g", {0: 1}, START + ACTIVE_MS)


@pytest.mark.parametrize(("come", "change"), [(take_over, {}), (reset, {0: 1})])
def test_a_commit_before_the_put_of_a_process_that_is_then_killed_is_not_lost(
    topics: Topics, come: Come, change: dict[int, int]
) -> None:
    """The process is killed before each of its calls to the storage."""
    found: list[dict[int, int]] = []
    for last in count():
        first = member_of(topics, holds_back=True)
        first.commit(state_of(topics), {0: 2}, START)

        def before(call: int, verb: str, key: str, first: Membership = first, last: int = last) -> None:
            if verb == "put_new":
                first.commit(state_of(topics), {0: 4, 1: 0}, START)
            if call == last:
                raise _KilledError

        storage = BeforeEachCall(topics.storage, before)
        with suppress(_KilledError):
            come(storage, state_of(topics))
        committed, positions = first.consumer.positions, group_of(topics).positions
        is_done = storage.calls == last
        assert positions in ([] if is_done else [committed]) + [committed | change]
        assert read_consumers(topics.storage, state_of(topics)).holds(0) == Holds({"g": positions[0]})
        assert member_of(topics, "next").consumer.positions == positions
        assert files_of(topics) == [consumer_key("t", "g", group_of(topics).generation)]
        forget(topics.storage, "t", "g")
        found += [positions] if positions not in found else []
        if is_done:
            break
    assert found == [{0: 2}, {0: 4, 1: 0}] + ([{0: 1, 1: 0}] if change else [])


def test_a_member_whose_generation_was_used_meanwhile_joins_again(topics: Topics) -> None:
    """Between its listing and its put, two other members join, so the file of its generation is deleted again."""
    member_of(topics).commit(state_of(topics), {0: 1}, START)

    class Paused(PlainStorage):
        paused = False

        def put_new(self, key, data) -> None:
            if not self.paused:
                self.paused = True
                for position in (2, 3):
                    member_of(topics).commit(state_of(topics), {0: position}, START)
            super().put_new(key, data)

    last = join(Paused(topics.storage), state_of(topics), "g", "n", "host", START)
    assert last.consumer.positions == {0: 3}
    last.commit(state_of(topics), {0: 4}, START)
    assert (group_of(topics), files_of(topics)) == (last.consumer, [consumer_key("t", "g", 4)])


def test_whoever_reads_a_group_during_a_join_finds_its_positions(topics: Topics) -> None:
    """Another member joins before each call of the reader to the storage."""
    member_of(topics, holds_back=True).commit(state_of(topics), {0: 4}, START)

    def with_kept(storage: Storage) -> Consumer:
        return KeptConsumers().read(storage, state_of(topics), START).known[0]

    def with_all(storage: Storage) -> Consumer:
        return read_consumers(storage, state_of(topics)).known[0]

    def alone(storage: Storage) -> Consumer:
        found = find_group(storage, state_of(topics), "g")
        assert found is not None
        return found

    for read in (with_kept, with_all, alone):
        for number in count():

            def before(call: int, verb: str, key: str, number: int = number) -> None:
                if call == number:
                    member_of(topics)

            storage = BeforeEachCall(topics.storage, before)
            found = read(storage)
            assert (found.positions, found.holds_back, found.joining) == ({0: 4}, True, False)
            if storage.calls <= number:
                break


def test_a_late_put_of_a_first_member_is_not_taken_for_the_deleted_file_of_its_name(topics: Topics) -> None:
    """Between a reader's listing and its read, the listed file is deleted, and a late put creates it again."""
    late: list[tuple[str, bytes]] = []

    class Unanswered(PlainStorage):
        def put_new(self, key, data) -> None:
            late.append((key, data))
            raise AmbiguousPutError(key, "no answer")

    with pytest.raises(AmbiguousPutError):
        join(Unanswered(topics.storage), state_of(topics), "g", "n", "host", START)
    member_of(topics, holds_back=True).commit(state_of(topics), {0: 4}, START)

    def before(call: int, verb: str, key: str) -> None:
        if verb == "read" and late:
            member_of(topics)
            topics.storage.put_new(*late.pop())

    found = find_group(BeforeEachCall(topics.storage, before), state_of(topics), "g")
    assert late == []
    assert found is not None
    assert (found.generation, found.positions) == (2, {0: 4})
    assert read_consumers(topics.storage, state_of(topics)).holds(0) == Holds({"g": 4})


def test_positions_cannot_be_set_while_a_member_is_joining(topics: Topics) -> None:
    member_of(topics).leave()

    def before(call: int, verb: str, key: str) -> None:
        if verb == "replace":
            with pytest.raises(StateError, match="has an active member, n on host"):
                set_positions(topics.storage, state_of(topics), "g", {0: 1}, START)

    second = join(BeforeEachCall(topics.storage, before), state_of(topics), "g", "n", "host", START)
    second.commit(state_of(topics), {0: 3}, START)
    assert group_of(topics) == second.consumer


def test_if_only_the_file_of_a_joining_member_is_left_its_positions_are_used(topics: Topics) -> None:
    member_of(topics).commit(state_of(topics), {0: 3}, START)

    def before(call: int, verb: str, key: str) -> None:
        if verb == "replace":
            raise _KilledError

    with pytest.raises(_KilledError):
        join(BeforeEachCall(topics.storage, before), state_of(topics), "g", "n", "host", START)
    assert files_of(topics) == [consumer_key("t", "g", 1), consumer_key("t", "g", 2)]
    forget(topics.storage, "t", consumer_key("t", "g", 1))
    assert group_of(topics).positions == {0: 3}
    assert member_of(topics).consumer.positions == {0: 3}


def test_of_many_that_join_at_once_one_can_commit(topics: Topics) -> None:
    members: list[Membership] = []
    threads = [threading.Thread(target=lambda: members.append(member_of(topics))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    committed = []
    for number, member in enumerate(members):
        try:
            member.commit(state_of(topics), {0: number + 1}, START)
        except FencedError:
            continue
        committed.append(member.consumer)
    assert [group_of(topics)] == committed


def test_samples_are_the_last_ten_and_some_time_apart(topics: Topics) -> None:
    state, consumer = state_of(topics), member_of(topics).consumer
    for step in range(1, 3_000):
        consumer = consumer.moved(state, {0: step}, START + step * 100)
    samples = consumer.samples
    assert len(samples) == 10
    assert samples[-1] == (START + 299_900, 2_999, 5)
    assert min(later.ms - earlier.ms for earlier, later in pairwise(samples[:-1])) >= 1_000


def test_the_samples_show_that_a_group_had_read_everything_before_a_pause(topics: Topics) -> None:
    state, consumer = state_of(topics), member_of(topics).consumer  # the topic has 5 records
    for burst in range(20):
        for position in (1, 2, 3, 5):
            consumer = consumer.moved(state, {0: position}, START + burst * 1_500 + position)
    assert [(each.ms - START, each.position) for each in consumer.samples[-4:]] == [
        (27_001, 1), (27_005, 5), (28_501, 1), (28_505, 5),
    ]  # fmt: skip


def test_a_group_holds_back_cleaning_if_it_asks_for_it(topics: Topics) -> None:
    member_of(topics).commit(state_of(topics), {0: 1}, START)
    assert read_consumers(topics.storage, state_of(topics)).holds(0) == Holds()
    member_of(topics, holds_back=True)
    assert read_consumers(topics.storage, state_of(topics)).holds(0) == Holds({"g": 1})
    member_of(topics)
    assert read_consumers(topics.storage, state_of(topics)).holds(0) == Holds({"g": 1})
    member_of(topics, holds_back=False)
    assert read_consumers(topics.storage, state_of(topics)).holds(0) == Holds()


def test_a_former_topic_of_the_name_has_its_groups_to_itself(topics: Topics) -> None:
    member_of(topics).commit(state_of(topics), {0: 5}, START)
    topics.delete("t")
    topics.create("t", 1, {})
    assert find_group(topics.storage, state_of(topics), "g") is None
    assert member_of(topics).consumer.positions == {}


def test_positions_are_set_once_the_member_has_left_or_is_long_silent(topics: Topics) -> None:
    member = member_of(topics)
    member.commit(state_of(topics), {0: 3, 1: 0}, START)
    with pytest.raises(StateError, match=r"has an active member, m on host. .* inactive in 1 seconds"):
        set_positions(topics.storage, state_of(topics), "g", {0: 1}, START + ACTIVE_MS - 1)
    set_positions(topics.storage, state_of(topics), "g", {0: 1}, START + ACTIVE_MS)
    found = group_of(topics)
    assert (found.positions, found.member, found.generation) == ({0: 1, 1: 0}, "", 2)
    with pytest.raises(FencedError):
        member.commit(state_of(topics), {0: 4}, START)
    other = member_of(topics)
    other.leave()
    set_positions(topics.storage, state_of(topics), "g", {0: 2}, START)
    assert group_of(topics).positions == {0: 2, 1: 0}


def test_a_member_shows_now_and_then_that_it_is_active(topics: Topics) -> None:
    member = member_of(topics)
    member.stay(START + 1_000)
    assert group_of(topics).seen_ms == START
    member.stay(START + ACTIVE_MS // 2)
    assert group_of(topics).seen_ms == START + ACTIVE_MS // 2


@pytest.mark.parametrize(("kind", "why"), [(STREAM_KIND, "checkpoint of a Spark query"), (EXPORT_KIND, "the table")])
def test_a_group_whose_position_is_decided_elsewhere_is_neither_joined_nor_reset(
    topics: Topics, kind: str, why: str
) -> None:
    put_positions(topics.storage, state_of(topics), "g", kind, {0: 1}, START, holds_back=True)
    before = files_of(topics)
    with pytest.raises(StateError, match=why):
        member_of(topics)
    with pytest.raises(StateError, match=why):
        set_positions(topics.storage, state_of(topics), "g", {0: 1}, START)
    assert files_of(topics) == before


def test_a_consumer_without_members_holds_back_only_if_it_asks_and_has_a_name_of_its_own(topics: Topics) -> None:
    def put(kind: str, position: int, holds_back: bool | None = None) -> Consumer:
        put_positions(topics.storage, topics.state("t"), "g", kind, {0: position}, START, holds_back=holds_back)
        (found,) = read_consumers(topics.storage, topics.state("t")).known
        return found

    assert [put(STREAM_KIND, 1, asked).holds_back for asked in (None, True, None, False)] == [False, True, True, False]
    with pytest.raises(StateError, match="group g, topic t: is of kind 'stream', not 'delta export'"):
        put(EXPORT_KIND, 1)
    forget(topics.storage, "t", "g")
    member_of(topics)
    with pytest.raises(StateError, match="is of kind 'group', not 'stream'"):
        put(STREAM_KIND, 1)
    topics.delete("t")
    topics.create("t", 2, {})
    assert put(STREAM_KIND, 0).positions == {0: 0}
    assert files_of(topics) == [consumer_key("t", "g")]


def refused_of(topics: Topics, first: Come, second: Come, number: int) -> list[str] | None:
    """Who was refused if `second` comes right before a call of `first` to the storage. None if `first` makes fewer calls."""
    state = state_of(topics)
    refused: list[str] = []

    def attempt(come: Come, storage: Storage) -> None:
        try:
            come(storage, state)
        except StateError:
            refused.append(come.__name__)

    def before(call: int, verb: str, key: str) -> None:
        if call == number:
            attempt(second, topics.storage)

    storage = BeforeEachCall(topics.storage, before)
    attempt(first, storage)
    return refused if storage.calls > number else None


def stream(storage: Storage, state: TopicState) -> None:
    put_positions(storage, state, "g", STREAM_KIND, {0: 1}, START)


def member(storage: Storage, state: TopicState) -> None:
    join(storage, state, "g", "m", "host", START)


@pytest.mark.parametrize(("first", "second"), [(stream, member), (member, stream)])
def test_a_consumer_and_a_member_that_come_at_the_same_time_never_both_have_the_name(
    topics: Topics, first: Come, second: Come
) -> None:
    outcomes: list[list[str]] = []
    while (refused := refused_of(topics, first, second, len(outcomes))) is not None:
        outcomes.append(refused)
        kinds = [each.kind for each in read_consumers(topics.storage, state_of(topics)).known]
        assert kinds in ([], ["group"], [STREAM_KIND])
        if kinds:
            with pytest.raises(StateError):
                (stream if kinds == ["group"] else member)(topics.storage, state_of(topics))
            forget(topics.storage, "t", "g")
    assert {tuple(sorted(refused)) for refused in outcomes} >= {("stream",), ("member",)}
    assert [] not in outcomes


def test_the_next_position_of_a_consumer_without_members_is_one_read_and_one_write(topics: Topics) -> None:
    verbs: list[str] = []
    storage = BeforeEachCall(topics.storage, lambda call, verb, key: verbs.append(verb))
    calls = []
    for position in (1, 2, 2):
        put_positions(storage, state_of(topics), "g", STREAM_KIND, {0: position}, START)
        calls.append(verbs.copy())
        verbs.clear()
    assert calls == [["read", "list", "replace", "list"], ["read", "replace"], ["read"]]
