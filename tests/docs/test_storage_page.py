"""The page docs/STORAGE.md: its configuration is loaded, and its policy for S3 is compared with real requests."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import lakelog
from pipeline.settings import load_settings
from tests.docs.pages import blocks
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.object_server import ObjectServer
from tests.stores import environment, new_bucket

PAGE = "docs/STORAGE.md"
OF_SPARK = {"s3:AbortMultipartUpload"}
LARGE = 9 * 1024**2


def test_the_configuration_is_loaded_with_its_options(tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "yaml")
    conf = tmp_path / "conf.yaml"
    conf.write_text(block.text)
    settings = load_settings(conf, (), None)
    assert settings.root == "s3://flights/lakelog"
    options = {"aws_endpoint_url": "https://store.example.com", "aws_region": "eu-central-1"}
    assert dict(settings.storage.options) == options


def action_of(method: str, path: str) -> str:
    """The action of S3 that a request needs."""
    url = urlsplit(path)
    query = parse_qs(url.query, keep_blank_values=True)
    if method == "GET" and ("list-type" in query or "prefix" in query):
        return "s3:ListBucket"
    if method == "POST" and "delete" in query:
        return "s3:DeleteObject"
    return {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}.get(method, "s3:PutObject")


def test_the_policy_allows_what_a_topic_and_its_upkeep_need_and_no_more(
    s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks(PAGE, "json")
    allowed = {action for statement in json.loads(block.text)["Statement"] for action in statement["Action"]}
    with FaultyProxy(s3) as proxy:
        bucket = new_bucket(s3)
        for name, value in environment(proxy.server, bucket).items():
            monkeypatch.setenv(name, value)
        root = lakelog.open(f"s3://{bucket}/root", create=True)
        topic = root.create_topic("t", config={"max.message.bytes": 2 * LARGE, "compression.type": "uncompressed"})
        topic.append([{"key": b"k", "value": b"x" * LARGE}])
        list(topic.follow(group="readers", start="earliest", stop_at_end=True))
        assert len(topic.read(start="earliest").to_arrow()) == 1
        root.verify()
        root.delete_topic("t")
        needed = {action_of(each.method, each.path) for each in proxy.exchanges}
    assert needed == allowed - OF_SPARK
