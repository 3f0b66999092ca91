"""`prove` finds random changes of tables, and calls no honest table different: a share of the trials of
`tests.pipeline.delta.proof.tampering`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.delta.proof.tampering.trials import trial


@pytest.mark.posix("writes into the files of the table")
def test_prove_finds_each_change_and_calls_no_honest_table_different(tmp_path: Path) -> None:
    trials = [trial(tmp_path / str(number), 7_000_000 + number) for number in range(16)]
    assert [str(each) for each in trials if each.failed] == []
    assert len({each.tampering for each in trials}) > 5
