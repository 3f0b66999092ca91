"""Compares an append or changelog table with the log: each record that can be decoded is one row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.delta.proof.compared_rows import LaterColumns, Numbers, Places, compare_columns, doubled
from pipeline.delta.proof.findings import NO_EVIDENCE, OTHER_MODEL, UNKNOWN_START, Evidence, Findings
from pipeline.delta.proof.row_differences import Mask
from pipeline.delta.rows.row_columns import UNDECODABLE


def compare_appended(
    records: pa.Table, is_open: Mask, rows: pa.Table, evidence: Evidence, later_columns: LaterColumns
) -> Findings:
    """Compare all rows of such a table, or a part of them, with their records.

    Args:
        records: the records below the table's positions, decoded with today's model (row_decoding.decoded_columns).
        is_open: bool of shape (records,): whether the record is an open dead letter of the table.
        rows: the rows, with the columns that are compared.
    """
    findings = Findings()
    there, places = Places(records), Places(rows)
    found = there.find(places.partitions, places.offsets)
    first = np.ones(len(rows), np.bool_)
    for index in doubled(places.offsets, places.partitions):
        first[index] = False
        findings.differs(places.partitions[index], places.offsets[index], "the row is there more than once")
    reasons = np.array(records["_reason"].to_pylist(), object)
    decodes = np.array([each is None for each in reasons], np.bool_)
    are_compared = first & (found >= 0) & decodes[found] if len(records) else np.zeros(len(rows), np.bool_)
    compared = np.flatnonzero(are_compared)
    compare_columns(records, found[compared], rows, compared, later_columns, findings)
    for index in np.flatnonzero(first & ~are_compared):
        partition, offset = int(places.partitions[index]), int(places.offsets[index])
        known = evidence.get(partition, NO_EVIDENCE)
        if offset >= known.position:
            findings.differs(partition, offset, "the row's offset is at or above the table's position")
        elif found[index] >= 0 and reasons[found[index]] == UNDECODABLE and not is_open[found[index]]:
            findings.unprovable[OTHER_MODEL] += 1
        elif found[index] >= 0:
            findings.differs(partition, offset, "the record at this place is a dead letter")
        elif (why := known.why_gone(offset)) is not None:
            findings.unprovable[why] += 1
        else:
            findings.differs(partition, offset, "the log has no such record")
    _missing(there, found[first], decodes & ~is_open, places, evidence, findings)
    # A record that an earlier model could decode is a row, and any other record is an open dead letter.
    is_lost = (reasons == UNDECODABLE) & ~is_open
    is_lost[found[found >= 0]] = False
    findings.unprovable[OTHER_MODEL] += sum(
        (evidence.get(int(there.partitions[index]), NO_EVIDENCE).began or 0) <= there.offsets[index]
        for index in np.flatnonzero(is_lost)
    )
    return findings


def _missing(
    there: Places, found: Numbers, expected: Mask, places: Places, evidence: Evidence, findings: Findings
) -> None:
    """Find the records that have no row."""
    expected = expected.copy()
    expected[found[found >= 0]] = False
    lowest = places.lowest_offsets()
    for index in np.flatnonzero(expected):
        partition, offset = int(there.partitions[index]), int(there.offsets[index])
        began = evidence.get(partition, NO_EVIDENCE).began
        if began is None and offset < lowest.get(partition, offset + 1):
            findings.unprovable[UNKNOWN_START] += 1
        elif began is None or offset >= began:
            findings.differs(partition, offset, "the record has no row")
