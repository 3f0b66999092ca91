"""Judges from a consumer's last commits whether the consumer still reads, with the rules of Burrow, LinkedIn's monitor
of Kafka consumers.

No limit on the lag is needed: the rules compare how the position and the end of the log have moved. Burrow judges each
partition. A consumer of Lakelog reads all partitions of a topic. Its file has a sample for each of its last ten
commits: the sum of the positions, and the sum of the log end offsets (storage_engine.topic.readers.consumer_files). So
this module judges the consumer as a whole.

The first rule that applies decides:

    1. Everything is read now                                                                     OK
    2. The last commit was more than ten minutes ago, and longer ago than the time between the
       first sample and the last; and the oldest unread record is more than ten minutes old,
       or its age is not known; and an export has at least three samples                          STOP
    3. At one of the samples, everything was read                                                 OK
    4. The position went back from one sample to the next                                         REWIND
    5. All samples have the same position                                                         STALL
    6. The lag never decreased from one sample to the next                                        WARN
    7.                                                                                            OK

Four details differ from Burrow. First, Burrow has no minimum time (the ten minutes of rule 2), because Burrow takes
about one sample per minute. Lakelog's samples can be a second apart. Second, a rule needs to know whether the consumer
was up to date within these ten minutes. For this, Burrow keeps recent log ends, but Lakelog uses the age of the oldest
unread record. Third, in Lakelog, rules 4 to 6 need at least three samples, because these rules compare samples. Fourth,
an export runs at intervals, so its first samples do not show yet how long it pauses.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from storage_engine.topic.readers.consumer_files import EXPORT_KINDS, PositionSample


class ConsumerStatus(StrEnum):
    """Whether a consumer reads. The names are Burrow's."""

    OK = "OK"
    WARN = "WARN"
    STOP = "STOP"
    STALL = "STALL"
    REWIND = "REWIND"

    @property
    def is_error(self) -> bool:
        """Whether Burrow gives a group with this status the status ERR."""
        return self not in (ConsumerStatus.OK, ConsumerStatus.WARN)


LEAST_WINDOW_MS = 600_000
"""The time of ten samples, one per minute, as by Burrow's default."""
_LEAST_SAMPLES = 3


def consumer_status(
    kind: str, samples: Sequence[PositionSample], lag: int, oldest_unread_ms: int | None, now_ms: int
) -> ConsumerStatus:
    """Judge a consumer. Pure.

    Args:
        kind: of the consumer.
        samples: the consumer's last commits, the oldest first.
        lag: the number of offsets that are unread now.
        oldest_unread_ms: the timestamp of the oldest unread record; None if it is not known.
    """
    if not lag or not samples:
        return ConsumerStatus.OK
    window_ms = max(LEAST_WINDOW_MS, samples[-1].ms - samples[0].ms)
    was_up_to_date = oldest_unread_ms is not None and now_ms - oldest_unread_ms <= LEAST_WINDOW_MS
    shows_pauses = kind not in EXPORT_KINDS or len(samples) >= _LEAST_SAMPLES
    if shows_pauses and now_ms - samples[-1].ms > window_ms and not was_up_to_date:
        return ConsumerStatus.STOP
    lags = [each.end - each.position for each in samples]
    if min(lags) <= 0 or len(samples) < _LEAST_SAMPLES:
        return ConsumerStatus.OK
    moves = [later.position - earlier.position for earlier, later in pairwise(samples)]
    if min(moves) < 0:
        return ConsumerStatus.REWIND
    if max(moves) == 0:
        return ConsumerStatus.STALL
    if all(later >= earlier for earlier, later in pairwise(lags)):
        return ConsumerStatus.WARN
    return ConsumerStatus.OK
