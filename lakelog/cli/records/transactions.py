"""`lakelog transactions`: lists the transactions that are still open in a partition, and ends them.

read_committed readers stop before an open transaction. After its timeout, a transaction is aborted by the next
`finish`, maintenance or `lakelog topics settle`. `abort` does not wait for the timeout. If the file with a
transaction's decision is damaged, the topics of the transaction cannot be used until `decide` writes the decision
again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.options import ConfOption, RootOption, open_topics, readable_states, settle_view
from lakelog.cli.output import write_line
from storage_engine.errors import ExitStatus
from storage_engine.quantities import counted

if TYPE_CHECKING:
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="List, abort and finish transactions.", no_args_is_help=True)


@app.command("list")
def list_(root: RootOption = None, conf: ConfOption = None) -> None:
    """Print the open transactions, one JSON object per line.

    The fields are producerId, partitions, decision, begunMs, timeoutMs, host and process. The field partitions contains
    the first offset of the transaction in each partition. If the transaction is not decided yet, the field decision is
    null. If only the markers are missing, the field is "commit" or "abort". If a broker left the transaction open, the
    fields begunMs, timeoutMs, host and process are null. No process will commit such a transaction: end it with
    `abort`.
    """
    topics = open_topics(root, conf)
    from storage_engine.topic.append.transaction_writer import open_transactions

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
    producer_id: Annotated[
        int,
        typer.Argument(metavar="PRODUCER_ID", help="The producerId that `lakelog transactions list` prints.", min=0),
    ],
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Abort an open transaction, even while a process is working on it."""
    topics = open_topics(root, conf)
    from storage_engine.topic.append.transaction_writer import abort_transaction

    with _shown_at_the_end(topics):
        abort_transaction(topics, producer_id)
    write_line(f"aborted the transaction of producer {producer_id}")


class Decision(StrEnum):
    """How a transaction ends."""

    COMMIT = "commit"
    ABORT = "abort"


@app.command("decide")
def decide(
    producer_id: Annotated[
        int, typer.Argument(metavar="PRODUCER_ID", help="The producer id in the name of the damaged file.", min=0)
    ],
    decision: Annotated[
        Decision,
        typer.Argument(help="The transaction's decision. The transaction's markers in other topics show the decision."),
    ],
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Write a transaction's decision again. This command is for a damaged decision file that has no backup."""
    topics = open_topics(root, conf)
    from storage_engine.topic.chain.transaction_files import decide_again

    with _shown_at_the_end(topics):
        states, unreadable = topics.states()
        for error in unreadable.values():
            raise error  # the unreadable topic may have a marker that contradicts the decision
        decide_again(topics.storage, topics.clock, producer_id, states, committed=decision is Decision.COMMIT)
    write_line(f"recorded for the transaction of producer {producer_id}: {decision}")


@app.command("finish")
def finish(root: RootOption = None, conf: ConfOption = None) -> None:
    """Write the markers of decided transactions, and abort transactions that have timed out."""
    topics = open_topics(root, conf)
    from storage_engine.topic.append.transaction_writer import finish_transactions

    with _shown_at_the_end(topics):
        ended = finish_transactions(topics)
    write_line(f"ended transactions on {counted(ended, 'partition')}")


@contextmanager
def _shown_at_the_end(topics: Topics) -> Iterator[None]:
    """At the end, after success or failure, settle the view of the topics that have open transactions now."""
    from storage_engine.topic.chain.transaction_files import open_producers

    names = [state.topic for state in topics.states()[0] if open_producers(state)]
    try:
        yield
    finally:
        settle_view(topics, *names)
