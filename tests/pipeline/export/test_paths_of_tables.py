"""The paths that an export refuses, because deltalake cannot handle them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.delta_options import unfit_for_deltalake
from pipeline.delta.dead_letters import append_staged_dead_letters
from storage_engine.errors import ConfigError
from storage_engine.storage.storage_opening import open_storage


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
        ("/mnt/lake/[old]/orders", "["),
        ("/mnt/lake/a\\b", "\\"),
        ("s3://bucket/a]b", "]"),
        ("abfss://c@a.dfs.core.windows.net/a|b", "|"),
        ("az://container/a^b", "^"),
        ("s3://bucket/a<b>'c' {d};`e`*f@g,h:i=j+k&l!m$n(o)\"", None),
        ("s3://bucket/dead letters/\u00e4", None),
    ],
)
def test_what_deltalake_would_read_as_another_path_is_refused(table: str, unfit: str | None) -> None:
    assert unfit_for_deltalake(table) == unfit


@pytest.mark.parametrize(("name", "unfit"), [("a[b", "["), ("a\\b", "\\"), ("a%41b", "%41")])
def test_dead_letters_are_not_given_to_deltalake_if_it_would_read_another_path(
    tmp_path: Path, name: str, unfit: str
) -> None:
    storage = open_storage(str(tmp_path / name))
    with pytest.raises(ConfigError) as refused:
        append_staged_dead_letters(storage, [], "tables/letters", "app", 1)
    assert str(refused.value) == (
        f"{tmp_path}/{name}/tables/letters: the path has {unfit!r}, and the library deltalake cannot open such tables."
        " Use a root and a table whose paths do not have it."
    )
    assert list(tmp_path.iterdir()) == []
