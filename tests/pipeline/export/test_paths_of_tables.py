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
        ("s3://bucket/dead letters/\u00e4", None),
    ],
)
def test_characters_that_urls_encode_are_refused_in_hdfs(table: str, unfit: str | None) -> None:
    assert unfit_for_deltalake(table) == unfit
