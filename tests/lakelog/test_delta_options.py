"""Tests that deltalake opens the same store as the engine and Spark, for each name that an option can have."""

from __future__ import annotations

import json

import pytest

from lakelog.delta_options import delta_options
from storage_engine.errors import ConfigError

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
    assert delta_options("s3://bucket/table") == expected


KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "SECRET"}
TOKEN = {**KEYS, "aws_session_token": "SECRET"}
SAS = {"azure_storage_sas_token": "SECRET"}
OTHERS = {"AWS_ACCESS_KEY_ID": "b", "AWS_SESSION_TOKEN": "SECRET", "AZURE_STORAGE_ACCOUNT_KEY": "SECRET"}


@pytest.mark.parametrize(("table", "options", "variable"), [
    ("s3://bucket/table", KEYS, "AWS_SESSION_TOKEN"),
    ("az://container/table", SAS, "AZURE_STORAGE_ACCOUNT_KEY"),
    ("abfss://c@a.dfs.core.windows.net/table", {"azure_client_secret": "SECRET"}, "AZURE_STORAGE_ACCOUNT_KEY"),
])  # fmt: skip
def test_credentials_that_deltalake_would_combine_with_others_are_refused(
    table: str, options: dict[str, str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps(options))
    assert delta_options(table) == options
    for name, value in OTHERS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        delta_options(table)
    assert str(refused.value) == (
        f"storage options: have other credentials than the variable {variable}, and deltalake would use both."
        f" Unset {variable} for this process, or remove the credentials from the options."
    )


@pytest.mark.parametrize(("table", "options"), [
    ("/mnt/table", KEYS),
    ("az://container/table", KEYS),
    ("s3://bucket/table", TOKEN),
    ("s3://bucket/table", SAS),
    ("az://container/table", {"azure_storage_access_key": "SECRET"}),
])  # fmt: skip
def test_credentials_that_deltalake_does_not_combine_with_others_are_used(
    table: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_STORAGE_OPTIONS", json.dumps(options))
    for name, value in OTHERS.items():
        monkeypatch.setenv(name, value)
    assert delta_options(table) == options
