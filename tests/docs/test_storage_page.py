"""The page docs/STORAGE.md: its configuration is loaded, and its policies for S3 are compared with real requests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import lakelog
from pipeline.settings import load_settings
from tests.docs.pages import blocks
from tests.servers.faults import Answer
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.http_messages import Request
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
    block, _ = blocks(PAGE, "json")
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


def objects_of(request: Request) -> Iterator[str]:
    """The bucket, and the objects of a request as S3's policies name them, without the prefix of all names."""
    url = urlsplit(request.path)
    path = unquote(url.path).removeprefix("/")
    if request.method == "POST" and "delete" in url.query:  # one request for several objects
        yield from (f"{path}/{key}" for key in re.findall("<Key>(.*?)</Key>", request.body.decode()))
    else:
        yield path.removesuffix("/")


def test_the_policy_of_a_reader_with_a_group_is_enough_to_store_positions_and_needs_the_names_of_the_check(
    s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, block = blocks(PAGE, "json")
    allowed = [
        (action, resource.removeprefix("arn:aws:s3:::"))
        for statement in json.loads(block.text)["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
    ]
    with FaultyProxy(s3) as proxy:
        bucket = new_bucket(s3)
        for name, value in environment(proxy.server, bucket).items():
            monkeypatch.setenv(name, value)
        root = f"s3://{bucket}/lakelog"
        lakelog.open(root, create=True).create_topic("orders")

        def reset(rights: list[tuple[str, str]]) -> tuple[int, str]:
            """Run a command of a new process, which makes the check again, with these rights."""

            def is_allowed(request: Request) -> bool:
                action = action_of(request.method, request.path)
                patterns = [pattern for each, pattern in rights if each == action]
                names = [name.replace(bucket, "flights", 1) for name in objects_of(request)]
                return all(any(fnmatch(name, pattern) for pattern in patterns) for name in names)

            proxy.clear()
            proxy.add(lambda request: None if is_allowed(request) else Answer(403))
            arguments = ("--group", "g", "--topic", "orders", "--to-earliest", "--execute", "--root", root)
            command = [sys.executable, "-m", "lakelog.cli", "groups", "reset-offsets", *arguments]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            return ended.returncode, re.sub("[0-9a-f]{16}:.*", "...", ended.stderr)

        without = [each for each in allowed if "/.tmp-" not in each[1]]
        assert reset(without) == (1, f"lakelog: {root}/.tmp-...\n")
        assert reset(allowed) == (0, "")
