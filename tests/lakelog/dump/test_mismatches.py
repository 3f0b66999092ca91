"""The order in which findings in several files are printed."""

from __future__ import annotations

from lakelog.dump import DumpedFile, Mismatches, dump_file
from tests.lakelog.dump.dumping import EVERYTHING, overwrite, segment


def test_findings_stand_in_the_order_of_kafkas_hash_map(tmp_path):
    log = segment(tmp_path)
    overwrite(log, 1245, (13).to_bytes(8, "big"))
    findings = Mismatches()
    names = [f"/logs/t-0/{number:020d}.log" for number in (0, 33, 166, 180)]
    for name in names:
        for _ in dump_file(DumpedFile(log, name, name), EVERYTHING, findings):
            pass
    head = "Non-consecutive offsets in "
    heads = [told.removeprefix(head) for told in findings.text() if told.startswith(head)]
    assert heads == [names[number] for number in (2, 0, 1, 3)]
