"""The paths that an export refuses, because deltalake cannot handle them."""

from __future__ import annotations

import pytest

from pipeline.export.export_request import unfit_for_deltalake


@pytest.mark.parametrize(
    ("table", "unfit"),
    [
        ("hdfs://host:8020/lake/tables/orders_2-a.b~c", None),
        ("hdfs://host:8020/lake/dead letters", " "),
        ("hdfs://host:8020/l%20ke/orders", "%"),
        ("hdfs://host:8020/l\u00e4ke/orders", "\u00e4"),
        ("/mnt/lake/dead letters/\u00e4", None),
        ("/mnt/lake/a%b/100%", None),
        ("/mnt/lake/a%41b", "%41"),
        ("s3://bucket/a%2fb", "%2f"),
        ("s3://bucket/dead letters/\u00e4", None),
    ],
)
def test_what_deltalake_would_read_as_another_path_is_refused(table: str, unfit: str | None) -> None:
    assert unfit_for_deltalake(table) == unfit
