"""Pages about cleaning: what retention, compaction and merging would do, before anything is done.

Plans are computed in the background (background/topic_plans.py). If a plan is not ready in time, its page says that it is
being computed, and asks again every second.

With --allow-changes, the page of a topic has a form that applies exactly the plan that the page shows. If the log has
changed after the page was made, the whole plan is refused (storage_engine.topic.clean.applying_plans). Only one plan is
applied at a time, in a thread of its own. The page of the change shows that it is being applied, and then the outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakelog.inspection.plan_texts import block_text, found_and_limit
from lakelog.optional import optional
from lakelog.report.layout import data_table, row_head
from lakelog.report.markup import Child, Markup, element
from lakelog.ui.access.guard import form_of
from lakelog.ui.background.defects import report_defect
from lakelog.ui.background.running_changes import Outcome
from lakelog.ui.background.topic_plans import PlanComputation
from lakelog.ui.changes import answer_of
from lakelog.ui.overview_pages import page_of
from lakelog.ui.rendering import Look, link_head, paging, show
from lakelog.ui.site import Site
from storage_engine.errors import LogError, StalePlanError, UnknownTopicError
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size
from storage_engine.topic.clean.applying_plans import (
    check_current,
    cleaning_tasks_of,
    merge_tasks_of,
    retain_as_planned,
)
from storage_engine.topic.clean.cleaning_plan import (
    Action,
    PartitionPlan,
    Plan,
    TopicPlan,
    step_summary,
)
from storage_engine.topic.clean.topic_compaction import compact_partitions
from storage_engine.topic.clean.topic_merging import merge_runs
from storage_engine.topic.kafka.view import settle_committed

with optional("starlette", "lakelog[ui]", "The command `lakelog ui`"):
    from starlette.requests import Request
    from starlette.responses import Response

TOPICS_OF_A_PAGE = 25
MOST_STEPS = 200
"""At most this many segments are listed: half of them from the beginning, half from the end."""
MOST_NOTES = 100


def plans(site: Site, request: Request) -> Response:
    """The page `/plans`: for each topic, what cleaning would do now.

    Raises:
        ConfigError: a parameter is wrong.
        StorageError: the root cannot be listed.
    """
    topics = site.exact_topics()
    look = site.look()
    names = look.names
    shown = page_of(request, len(names), TOPICS_OF_A_PAGE)
    rows, errors = list[Sequence[Child]](), list[LogError]()
    found = site.plans.ask(topics, names[shown.first : shown.end], site.patience_seconds)
    for each in found:
        try:
            rows += [_being_computed(each)] if each.ended_ms is None else map(_summary_row, each.result().topics)
        except UnknownTopicError:
            continue  # a deleted topic
        except LogError as error:
            errors.append(error)
    columns = ("topic", "cleanup.policy", "what would be done", "in the log", "after that")
    values = {
        "table": data_table("Cleaning that is due", columns, rows, words=("cleanup.policy",), prose=columns[2:3])
        if rows else None,
        "errors": errors, "paging": shown, "seen": look,
    }  # fmt: skip
    is_unfinished = not look.is_listed or any(each.ended_ms is None for each in found)
    return show(site, request, "plans", Look("Plans", tab="plans", is_unfinished=is_unfinished), values)


def _being_computed(computation: PlanComputation) -> Sequence[Child]:
    name = computation.topic
    return (link_head(name, "topics", name, "plan"), None, element("strong", "being computed"), None, None)


def _summary_row(planned: TopicPlan) -> Sequence[Child]:
    parts = planned.partitions
    most = "" if all(each.exact for each in parts) else "at most "
    return (
        link_head(planned.topic, "topics", planned.topic, "plan"), planned.settings["cleanup.policy"] or "none",
        step_summary(step for each in parts for step in each.steps), shown_size(sum(each.bytes_before for each in parts)),
        f"{most}{shown_size(sum(each.bytes_after for each in parts))}",
    )  # fmt: skip


def plan(site: Site, request: Request, name: str) -> Response:
    """The page `/topics/TOPIC/plan`.

    Raises:
        UnknownTopicError: there is no such topic.
        ConfigError: the settings of the topic are wrong.
        CorruptionError: the state of the topic is damaged.
        StorageError: a decision required to read a segment, and the read failed.
    """
    (computation,) = site.plans.ask(site.exact_topics(), [name], site.patience_seconds)
    if computation.ended_ms is None:
        look = Look(f"Plan for {name}", name, "plan", is_unfinished=True)
        return show(site, request, "plan_computation", look, {"computation": computation})
    return _show_plan(site, request, computation.result(), computation.name)


def _show_plan(site: Site, request: Request, planned: Plan, plan_name: str) -> Response:
    (of_topic,) = planned.topics
    steps = [step for each in of_topic.partitions for step in each.steps]
    busy = [each for each in of_topic.partitions if each.steps]
    can_apply = site.options.allow_changes and bool(steps)
    shown = paging(len(busy), 1, MOST_STEPS)
    if can_apply:
        site.keep_plan(plan_name, planned)
    values = {
        "name": of_topic.topic, "planned": of_topic, "as_of": shown_moment(of_topic.now_ms),
        "summary": step_summary(steps),
        "partitions": _partitions_table(busy[: shown.end]) if busy else None,
        "more_partitions": len(busy) - shown.end,
        "steps": _steps_table(of_topic) if steps else None, "more_steps": max(0, len(steps) - MOST_STEPS),
        "notes": list(_notes(of_topic))[:MOST_NOTES],
        "can_apply": can_apply, "plan": plan_name,
    }  # fmt: skip
    look = Look(f"Plan for {of_topic.topic}", of_topic.topic, "plan", has_form=can_apply)
    return show(site, request, "plan", look, values)


def _notes(planned: TopicPlan) -> Iterator[str]:
    """The rules that keep segments, as `lakelog plan` prints them."""
    for each in planned.partitions:
        for block in each.blocks:
            if block.kind != "active segment" or not (each.steps or each.blocks[1:]):
                yield f"partition {each.partition}: {block_text(block)}"


def _partitions_table(parts: Sequence[PartitionPlan]) -> Markup:
    def change(before: str, after: str, most: str = "") -> str:
        return before if before == after and not most else f"{before} → {most}{after}"

    def rows() -> Iterator[Sequence[Child]]:
        for each in parts:
            most = "" if each.exact else "at most "
            yield (
                row_head(str(each.partition)),
                change(shown_number(each.log_start_offset), shown_number(each.log_start_offset_after)),
                change(shown_number(each.segments_before), shown_number(each.segments_after), most),
                change(shown_size(each.bytes_before), shown_size(each.bytes_after), most), step_summary(each.steps),
            )  # fmt: skip

    columns = ("partition", "log start offset", "segments", "bytes", "what would be done")
    return data_table("Partitions that would change", columns, rows(), prose=columns[4:])


def _steps_table(planned: TopicPlan) -> Markup:
    steps = [(each.partition, step) for each in planned.partitions for step in each.steps]
    half = MOST_STEPS // 2
    shown = steps if len(steps) <= MOST_STEPS else [*steps[:half], *steps[-half:]]
    rows = (
        (
            row_head(f"{number}, offset {shown_number(step.base_offset)}"), shown_size(step.bytes), str(step.action),
            step.rule, *found_and_limit(step),
        )
        for number, step in shown
    )  # fmt: skip
    columns = ("partition and segment", "bytes", "what", "by", "found", "limit")
    return data_table("Segments that would change", columns, rows, words=columns[2:])


def apply(site: Site, request: Request, name: str) -> Response:
    """The form on the page of a plan: apply the plan, and show what was done. If the form is sent again, the plan is not
    applied again.

    Raises:
        ConfigError: a field is wrong.
        StalePlanError: the log has changed, or the server no longer has the plan. Nothing was changed.
        ConflictError: another change is running.
    """
    wanted = form_of(request).required("plan", "Send the form of the page of a plan.")
    planned = site.kept_plan(wanted)
    if planned is None or [each.topic for each in planned.topics] != [name]:
        raise StalePlanError(f"topic {name}", "the server no longer has this plan", "Load the page of the plan again.")
    change = site.changes.begin("apply a plan", name, wanted, lambda: apply_plan(site, planned), once=True)
    return answer_of(site, request, change)


def apply_plan(site: Site, planned: Plan) -> Outcome:
    """Apply a plan for one topic, as `lakelog plan --apply` does.

    Raises:
        StalePlanError: the log has changed. Nothing was changed.
    """
    topics, (each,) = site.exact_topics(), planned.topics
    site.plans.forget(each.topic)  # if the plan is refused, the next page needs a new one
    check_current(planned, topics)
    chain = topics.chain(each.topic)
    before = chain.newest()
    done, problems = list[str](), list[str]()
    try:
        if any(step.action is Action.DELETE for part in each.partitions for step in part.steps):
            retained = retain_as_planned(chain, topics.broker, each)
            done += (
                f"topic {each.topic}, partition {number}: {counted(len(part.deletions), 'segment')} deleted,"
                f" {shown_size(part.bytes)}; the partition now begins at offset {part.log_start_offset}"
                for number, part in enumerate(retained.plans) if part.deletions
            )  # fmt: skip
            problems += retained.warnings
        compacted = compact_partitions(topics.storage, chain, cleaning_tasks_of(each, topics, chain.newest()))
        merged = merge_runs(topics.storage, chain, merge_tasks_of(each, topics, chain.newest()))
        for result, verb in ((compacted, "compacted"), (merged, "merged")):
            done += (
                f"topic {each.topic}, partition {made.partition}: {verb} {counted(len(made.replaced), 'segment')} into"
                f" {shown_size(sum(segment.size for segment in made.segments))}"
                for made in result.cleaned
            )
            problems += (
                f"topic {each.topic}, partition {made.partition}: changed during the work, so nothing was done"
                for made in result.changed_meanwhile
            )
            problems += (f"topic {each.topic}, {failure}" for failure in result.failed)
        problems += compacted.warnings
    except LogError as error:
        problems.append(str(error))
    except Exception as error:  # noqa: BLE001 - the outcome also has what was done before
        problems.append(str(report_defect(f"topic {each.topic}: apply a plan", error, site.warn)))
    try:
        if chain.newest().version > before.version:
            settle_committed(topics, (each.topic,), problems.append)
    except LogError as error:
        problems.append(str(error))
    site.plans.forget(each.topic)
    return Outcome(done, problems)
