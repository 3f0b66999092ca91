"""`lakelog transactions`: those that have not ended everywhere, and how to end them.

An open transaction keeps readers of committed records from what is behind it. One that timed out is aborted by `finish`,
by maintenance and by `lakelog topics settle`; abort does not wait for that. A decision whose record is damaged stops the
topics that depend on it, until `decide` puts it on record again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, open_topics, readable_states, settle_view
from storage_engine.cli.output import write_line
from storage_engine.errors import ExitStatus
from storage_engine.quantities import counted

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="List, abort and finish transactions.", no_args_is_help=True)


@app.command("list")
def list_(root: RootOption = None, conf: ConfOption = None) -> None:
    """Print the open transactions, one JSON object a line.

    producerId; partitions, with the first offset of the transaction in each; decision: commit or abort where it lacks
    only its markers, null while it can go either way; begunMs, timeoutMs, host and process, null for a transaction that
    a broker left open: nobody will commit it, and abort ends it.
    """
    topics = open_topics(root, conf)
    from storage_engine.topic.transactions import open_transactions

    states, failed = readable_states(topics, None)
    for each in open_transactions(topics, states):
        begun = each.begun
        document = {
            "producerId": each.producer_id,
            "partitions": [
                {"topic": topic, "partition": number, "firstOffset": offset} for topic, number, offset in each.places
            ],
            "decision": {None: None, True: "commit", False: "abort"}[each.committed],
            "begunMs": begun.begun_ms if begun else None,
            "timeoutMs": begun.timeout_ms if begun else None,
            "host": begun.host if begun else None,
            "process": begun.pid if begun else None,
        }
        write_line(json.dumps(document, separators=(",", ":")))
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


@app.command("abort")
def abort(
    producer_id: Annotated[int, typer.Argument(metavar="PRODUCER_ID", help="As list prints it.", min=0)],
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Abort an open transaction, whoever works on it."""
    topics = open_topics(root, conf)
    from storage_engine.topic.transactions import abort_transaction

    with _shown_at_the_end(topics):
        abort_transaction(topics, producer_id)
    write_line(f"aborted the transaction of producer {producer_id}")


class Decision(StrEnum):
    """How a transaction ends."""

    COMMIT = "commit"
    ABORT = "abort"


@app.command("decide")
def decide(
    producer_id: Annotated[int, typer.Argument(metavar="PRODUCER_ID", help="As the file's name has it.", min=0)],
    decision: Annotated[Decision, typer.Argument(help="What the markers in other topics say.")],
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Put the decision about a transaction on record again, where the record is damaged and there is no backup of it."""
    topics = open_topics(root, conf)
    from storage_engine.topic.decisions import decide_again

    with _shown_at_the_end(topics):
        states, unreadable = topics.states()
        for error in unreadable.values():
            raise error  # it may have the marker that says otherwise
        decide_again(topics.storage, topics.clock, producer_id, states, committed=decision is Decision.COMMIT)
    write_line(f"the transaction of producer {producer_id} is to end as: {decision}")


@app.command("finish")
def finish(root: RootOption = None, conf: ConfOption = None) -> None:
    """Write the markers of transactions that are decided, and abort those that have timed out."""
    topics = open_topics(root, conf)
    from storage_engine.topic.transactions import finish_transactions

    with _shown_at_the_end(topics):
        ended = finish_transactions(topics)
    write_line(f"ended transactions on {counted(ended, 'partition')}")


@contextmanager
def _shown_at_the_end(topics: Topics) -> Iterator[None]:
    """Settle the view of the topics that have open transactions now, whether what is done to these fails or not."""
    from storage_engine.topic.decisions import open_producers

    names = [state.topic for state in topics.states()[0] if open_producers(state)]
    try:
        yield
    finally:
        settle_view(topics, *names)
