"""Tests that docs/LOG_MANAGER.md shows a file of settings that works, and names the keys that have an effect."""

from __future__ import annotations

import re
from pathlib import Path

from lakelog.cli.clean.topic_config_file import read_topic_configs
from storage_engine.config import TOPIC_KEYS
from storage_engine.config.server_properties import ACTING_KEYS
from tests.docs.pages import blocks, text_of

PAGE = "docs/LOG_MANAGER.md"


def test_the_settings_of_topics_are_those_of_the_page(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "yaml")
    (tmp_path / "topics.yaml").write_text(block.text)
    assert read_topic_configs(tmp_path / "topics.yaml") == {
        "orders": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"},
        "clicks": {"retention.ms": "86400000"},
    }


def test_the_keys_of_the_tasks_have_an_effect() -> None:
    table = text_of(PAGE).partition("| task | keys |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`((?:log|num|file)\.[a-z.]+)`", table))
    assert named - ACTING_KEYS.keys() - TOPIC_KEYS.keys() == set()
    without_topics = {key for key, declared in ACTING_KEYS.items() if not declared.sets}
    assert without_topics - named == {"producer.id.expiration.ms"}
