"""Tests that deltalake opens the same store as the engine and Spark, for each name that an option can have."""

from __future__ import annotations

import json

import pytest

from lakelog.delta_options import delta_options

A, B = "http://a:9000", "https://b"
REGION = {"aws_region": "us-east-1"}


@pytest.mark.parametrize(("options", "environ", "expected"), [
    ({}, {}, {}),
    ({"timeout": "5s"}, {"AWS_REGION": "eu-central-1"}, {"timeout": "5s"}),
    ({}, {"AWS_ENDPOINT_URL": A}, {"aws_endpoint_url": A, "allow_http": "true", **REGION}),
    ({"aws_endpoint": B}, {"AWS_ENDPOINT_URL_S3": A}, {"aws_endpoint_url": B, **REGION}),
    ({"aws_endpoint_url_s3": B, "aws_endpoint_url": A}, {}, {"aws_endpoint_url": B, **REGION}),
    ({"azure_storage_endpoint": A}, {}, {"azure_storage_endpoint": A, "allow_http": "true"}),
    ({"azure_endpoint": B}, {}, {"azure_endpoint": B}),
    ({}, {"AZURE_STORAGE_ENDPOINT": A}, {"allow_http": "true"}),
    ({"aws_endpoint_url": B}, {"AWS_DEFAULT_REGION": "r"}, {"aws_endpoint_url": B, "aws_region": "r"}),
])  # fmt: skip
def test_the_endpoint_and_the_region_are_those_of_the_engine(
    options: dict[str, str], environ: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENDPOINT_URL_S3", "ENDPOINT_URL", "ENDPOINT", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps(options))
    assert delta_options() == expected
