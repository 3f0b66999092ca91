"""`lakelog perf`: measures appends and reads, with the options and the output of Kafka's two performance tests.

`perf produce` appends records without keys, many in each commit, with or without transactions. The records stay in the
topic. `perf consume` reads the records that the topic has when the command starts, also records of open and aborted
transactions. `perf consume` does not convert the records to Python objects, and does not print them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.kafka_tools.kafka_options import accepting
from lakelog.cli.kafka_tools.partition_filter import topic_pattern
from lakelog.cli.kafka_tools.perf_figures import (
    DETAILED_HEADER,
    HEADER,
    Consumed,
    ProducerFigures,
    consumer_interval,
    consumer_total,
    shown_date,
)
from lakelog.cli.options import LONG_MAX, ConfOption, RootOption, TopicOption, open_topics, settle_view, topic_readers
from lakelog.cli.output import write_line
from storage_engine.errors import NotFoundError, UnknownTopicError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from lakelog.cli.kafka_tools.perf_appends import PerfAppends
    from storage_engine.topic.topics import Topics

app = typer.Typer(help="Measure how fast a topic is written and read.", no_args_is_help=True)

_INT_MAX = 2**31 - 1
_CAPITAL_A, _CAPITALS = 65, 26
_TRANSACTION_MS = 3000
_LEAST_THROUGHPUT = 0.001
"""The lowest limit of --throughput, in records per second. The pause after a commit must be a time that the system can
wait.
"""
_COMMIT_BYTES = 256 << 20
"""The most bytes of the values of --record-size in a commit, unless one value has more."""
_Values = Callable[[int, int], "pa.Array"]
"""Makes the values of some records: the number of the first record, and how many."""
IntervalOption = Annotated[
    int, typer.Option("--reporting-interval", metavar="MS", min=1, max=LONG_MAX, help="How often to print a report.")
]
PayloadFileOption = Annotated[
    Path | None,
    typer.Option("--payload-file", metavar="FILE", help="Take each value at random from the values in this file."),
]
ThroughputOption = Annotated[
    float, typer.Option("--throughput", metavar="N", help="Append at most N records per second; -1: no limit.")
]
WarmupOption = Annotated[
    int,
    typer.Option(
        "--warmup-records",
        metavar="N",
        min=0,
        max=LONG_MAX,
        help="At the end, print a second line of figures that does not include the first N records.",
    ),
]
BatchOption = Annotated[
    int,
    typer.Option(
        "--batch-records",
        metavar="N",
        min=1,
        max=_INT_MAX,
        help="Number of records in a commit. With --record-size, a commit has fewer records if their values would have more than"
        " 256 MiB.",
    ),
]
TransactionalIdOption = Annotated[
    str | None,
    typer.Option(
        "--transactional-id", metavar="NAME", help="Append in transactions. The name has no effect in Lakelog."
    ),
]
TransactionDurationOption = Annotated[
    int | None,
    typer.Option(
        "--transaction-duration-ms",
        metavar="MS",
        min=1,
        max=_INT_MAX,
        help="Append in transactions, and commit each transaction after this time. Default with --transactional-id: 3000.",
    ),
]
RecordsOption = Annotated[
    int | None,
    typer.Option("--num-records", metavar="N", min=1, max=LONG_MAX, help="Number of records to read. Required."),
]
MessagesOption = Annotated[
    int | None,
    typer.Option("--messages", metavar="N", min=1, max=LONG_MAX, help="The older name of --num-records."),
]
DateFormatOption = Annotated[
    str,
    typer.Option(
        "--date-format", metavar="PATTERN", help="Format of the printed times: a pattern of Java's SimpleDateFormat."
    ),
]


@app.command("produce", cls=accepting("perf produce"))
def produce(
    topic: TopicOption,
    num_records: Annotated[
        int, typer.Option("--num-records", metavar="N", min=1, max=LONG_MAX, help="Number of records to append.")
    ],
    record_size: Annotated[
        int | None,
        typer.Option("--record-size", metavar="BYTES", min=1, max=_INT_MAX, help="Size of each value (random capital letters)."),
    ] = None,
    payload_file: PayloadFileOption = None,
    payload_delimiter: Annotated[
        str, typer.Option("--payload-delimiter", metavar="TEXT", help="The text between two values in the file.")
    ] = "\\n",
    payload_monotonic: Annotated[
        bool, typer.Option("--payload-monotonic", help="Use the number of a record as its value.")
    ] = False,
    throughput: ThroughputOption = -1.0,
    warmup_records: WarmupOption = 0,
    batch_records: BatchOption = 10_000,
    reporting_interval: IntervalOption = 5000,
    transactional_id: TransactionalIdOption = None,
    transaction_duration_ms: TransactionDurationOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Append records and print the speed, as kafka-producer-perf-test does.

    Give one of --record-size, --payload-file and --payload-monotonic. The records stay in the topic.
    """
    if (record_size is not None) + (payload_file is not None) + payload_monotonic != 1:
        raise UsageError(
            "lakelog perf produce", "expected one of --record-size, --payload-file and --payload-monotonic",
            "Give exactly one of the three.",
        )  # fmt: skip
    if warmup_records >= num_records:
        raise UsageError(
            "--warmup-records", f"expected fewer than --num-records, {num_records}; found {warmup_records}"
        )
    most = _commit_records(throughput, batch_records, record_size)
    topics = open_topics(root, conf)
    topics.state(topic)
    values = _values(record_size, payload_file, payload_delimiter)
    if warmup_records:
        write_line(
            f"Warmup first {warmup_records} records. Steady state results will print after the complete test summary."
        )
    sizes = _sizes(num_records, warmup_records, most)
    if transactional_id is not None and transaction_duration_ms is None:
        transaction_duration_ms = _TRANSACTION_MS
    from lakelog.cli.kafka_tools.perf_appends import PerfAppends

    try:
        with PerfAppends(topics, topic, transaction_duration_ms, _now_ms) as appends:
            _produce(appends, values, sizes, throughput, warmup_records, reporting_interval)
    finally:
        settle_view(topics, topic)


def _commit_records(throughput: float, batch_records: int, record_size: int | None) -> int:
    """The largest number of records in a commit. All values of a commit are in memory at once.

    Raises:
        UsageError: the throughput is not a possible limit.
    """
    if record_size is not None:
        batch_records = min(batch_records, max(1, _COMMIT_BYTES // record_size))
    if throughput <= 0:
        return batch_records
    if not _LEAST_THROUGHPUT <= throughput < math.inf:
        raise UsageError(
            "--throughput",
            f"found {throughput:g}",
            f"Give a number of records per second, at least {_LEAST_THROUGHPUT:g}. Or give -1 for no limit.",
        )
    return max(1, min(batch_records, int(throughput)))


def _produce(
    appends: PerfAppends, values: _Values, sizes: Iterator[int], throughput: float, warmup: int, interval_ms: int
) -> None:
    """Append commits of these sizes, and print the figures."""
    begun = _now_ms()
    total, window = ProducerFigures(begun), ProducerFigures(begun)
    steady: ProducerFigures | None = None
    for count in sizes:
        start = _now_ms()
        if steady is None and 0 < warmup <= total.count:
            steady = ProducerFigures(start, steady=True)
        size = appends.append(values(total.count, count))
        now = _now_ms()
        for figures in (total, window, steady):
            if figures is not None:
                figures.record(round(now - start), count, size)
        appends.commit_if_due()
        if now - window.start_ms >= interval_ms:
            if steady is not None and steady.count == window.count:
                write_line("In steady state.")
            if not warmup or steady is not None:
                write_line(window.window(now))
            window = ProducerFigures(now)
        if throughput > 0:
            time.sleep(max(0.0, total.count / throughput - (_now_ms() - begun) / 1000))
    appends.commit()
    end = _now_ms()
    write_line(total.total(end))
    if steady is not None:
        write_line(steady.total(end))


def _sizes(records: int, warmup: int, most: int) -> Iterator[int]:
    """The number of records of each commit. The warm-up ends with a commit."""
    for part in (warmup, records - warmup):
        left = part
        while left:
            count = min(left, most)
            yield count
            left -= count


def _now_ms() -> float:
    return time.monotonic() * 1000


def _values(record_size: int | None, file: Path | None, delimiter: str) -> _Values:
    """Makes the values of the records; by default, the values are the numbers of the records."""
    import numpy as np
    import pyarrow as pa

    if record_size is not None:
        return _RandomCapitals(record_size, np.random.default_rng(0))
    if file is None:
        return lambda first, count: pa.array([b"%d" % number for number in range(first, first + count)])
    if not delimiter:
        raise UsageError("--payload-delimiter", "found an empty text", "Give the text between two values of the file.")
    write_line(f"Reading payloads from: {file.absolute()}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise NotFoundError(f"--payload-file {file}", f"cannot be read: {error.strerror}") from None
    payloads = content.split(os.fsencode(delimiter.replace("\\n", "\n")))
    if payloads and not payloads[-1]:
        payloads.pop()  # the file ends with the delimiter
    if not payloads:
        raise UsageError(f"--payload-file {file}", "the file is empty", "Name a file with values.")
    write_line(f"Number of records read: {len(payloads)}")
    chosen, random = pa.array(payloads, pa.binary()), np.random.default_rng(0)
    return lambda _, count: chosen.take(pa.array(random.integers(len(payloads), size=count)))


class _RandomCapitals:
    """Makes values of random capital letters."""

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self._size = size
        self._random = random

    def __call__(self, _: int, count: int) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        letters = self._random.integers(_CAPITALS, size=count * self._size, dtype=np.uint8) + np.uint8(_CAPITAL_A)
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(self._size), count, [None, pa.py_buffer(letters)])
        return fixed.cast(pa.binary())


@app.command("consume", cls=accepting("perf consume"))
def consume(
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Name of the topic.")] = None,
    include: Annotated[
        str | None,
        typer.Option("--include", metavar="REGEX", help="Read all topics whose whole name matches. Not with --topic."),
    ] = None,
    num_records: RecordsOption = None,
    messages: MessagesOption = None,
    timeout: Annotated[
        int, typer.Option("--timeout", metavar="MS", min=0, max=LONG_MAX, help="Used only in the text of a warning.")
    ] = 10_000,
    show_detailed_stats: Annotated[
        bool, typer.Option("--show-detailed-stats", help="Print regular reports, but no summary at the end.")
    ] = False,
    reporting_interval: IntervalOption = 5000,
    date_format: DateFormatOption = "yyyy-MM-dd HH:mm:ss:SSS",
    hide_header: Annotated[bool, typer.Option("--hide-header", help="Do not print the line with the column names.")] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:  # fmt: skip
    """Read records and print the speed, as kafka-consumer-perf-test does.

    Give --topic or --include, and --num-records.
    """
    if (topic is None) == (include is None):
        raise UsageError("lakelog perf consume", "expected --topic or --include, and not both", "Give one of the two.")
    if (num_records is None) == (messages is None):
        raise UsageError(
            "lakelog perf consume",
            "--num-records is not given, or --messages is also given",
            "Give only --num-records.",
        )
    if messages is not None:
        write_line("Warning: --messages is deprecated. Use --num-records instead.")
    wanted = num_records or messages or 0
    shown_date(0, date_format)
    topics = open_topics(root, conf)
    if not hide_header:
        write_line(DETAILED_HEADER if show_detailed_stats else HEADER)
    start = Consumed(topics.clock.now_ms())
    streams = _streams(topics, topic, include)
    join_ms = topics.clock.now_ms() - start.at_ms
    last, now, unreported_ms = start, start, join_ms
    for records in streams:
        taken = records.slice(0, wanted - now.count)
        now = Consumed(topics.clock.now_ms(), now.count + taken.num_rows, now.size + _content_bytes(taken))
        if now.at_ms - last.at_ms >= reporting_interval:
            if show_detailed_stats:
                write_line(consumer_interval(last, now, unreported_ms, date_format))
            last, unreported_ms = now, 0
        if now.count >= wanted:
            break
    if now.count < wanted:
        write_line(
            f"WARNING: Exiting before consuming the expected number of records: timeout ({timeout} ms) exceeded."
            " You can use the --timeout option to increase the timeout."
        )
    end = Consumed(topics.clock.now_ms(), now.count, now.size)
    if not show_detailed_stats:
        write_line(consumer_total(start, end, join_ms, date_format))


def _streams(topics: Topics, topic: str | None, include: str | None) -> Iterator[pa.RecordBatch]:
    """The records of all partitions, one partition after another."""
    from storage_engine.log.isolation import Isolation

    if topic is not None:
        names = [topic]
    else:
        pattern = topic_pattern(include or "", "--include")
        names = [name for name in topics.names() if pattern.fullmatch(name)]
        if not names:
            raise UnknownTopicError(
                f"--include {include}", "no topic matches", "`lakelog topics list` prints all names."
            )
    readers = [reader for name in names for reader in topic_readers(topics, name, None).values()]
    return (
        records
        for reader in readers
        for records in reader.read(reader.partition.log_start_offset, None, Isolation.READ_UNCOMMITTED)
    )


def _content_bytes(records: pa.RecordBatch) -> int:
    """The bytes of the keys and values."""
    import pyarrow.compute as pc

    from storage_engine.record.record_columns import with_binary

    plain = with_binary(records.select(["key", "value"]))
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in plain.columns)
