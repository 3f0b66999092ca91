"""The settings of S3A and ABFS that follow from the storage options and the environment."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from pipeline.spark.azure_settings import abfs_settings
from pipeline.spark.store_settings import hadoop_settings, open_stores, require_file_system
from storage_engine.errors import ConfigError

ALWAYS = {
    "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
}
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
HADOOP_KEYS = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}


@pytest.mark.parametrize(("options", "environ", "expected"), [
    ({}, {}, {}),
    ({}, {"AWS_REGION": "eu-central-1"}, {"fs.s3a.endpoint.region": "eu-central-1"}),
    ({"aws_region": "eu-west-1"}, {"AWS_REGION": "eu-central-1"}, {"fs.s3a.endpoint.region": "eu-west-1"}),
    ({}, {"AWS_ENDPOINT_URL": "http://store:9000"}, {
        "fs.s3a.endpoint": "http://store:9000", "fs.s3a.path.style.access": "true", "fs.s3a.endpoint.region": "us-east-1",
    }),
    ({"aws_endpoint": "https://a", "aws_virtual_hosted_style_request": "true"}, {"AWS_ENDPOINT_URL_S3": "https://b"}, {
        "fs.s3a.endpoint": "https://a", "fs.s3a.path.style.access": "false", "fs.s3a.endpoint.region": "us-east-1",
    }),
    (KEYS, {}, HADOOP_KEYS),
    ({}, {name.upper(): value for name, value in KEYS.items()}, HADOOP_KEYS),
    (KEYS, {"AWS_ACCESS_KEY_ID": "another", "AWS_SESSION_TOKEN": "of another"}, HADOOP_KEYS),
    (KEYS, {"AWS_SECRET_ACCESS_KEY": "another"}, HADOOP_KEYS),
    ({**KEYS, "aws_session_token": "token"}, {}, {**HADOOP_KEYS, "fs.s3a.session.token": "token"}),
    ({"aws_skip_signature": "true"}, {}, {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
    }),
    ({"azure_storage_account_name": "name", "timeout": "5s"}, {"LAKELOG_ROOT": "s3://a", "AWS_REGION": ""}, {}),
])  # fmt: skip
def test_options_and_variables_become_settings_of_s3a(
    options: dict[str, str], environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert hadoop_settings(options, environ) == ALWAYS | expected


@pytest.mark.parametrize(("options", "present", "missing"), [
    ({"aws_access_key_id": "SECRET"}, "aws_access_key_id", "aws_secret_access_key"),
    ({"aws_token": "SECRET"}, "aws_session_token", "aws_access_key_id and aws_secret_access_key"),
])  # fmt: skip
def test_a_part_of_the_credentials_is_refused(options: dict[str, str], present: str, missing: str) -> None:
    with pytest.raises(ConfigError) as refused:
        hadoop_settings(options, {name.upper(): value for name, value in KEYS.items()})
    assert str(refused.value) == (
        f"storage options: have {present}, but not {missing}."
        " Write all credentials of S3 into the options, or all into the environment."
    )


SAS = {"fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": "sv=1&sig=2"}
EMULATOR = {
    "fs.azure.abfs.endpoint": "127.0.0.1:10000",
    "fs.azure.account.hns.enabled": "false",
    "fs.azure.fns.account.service.type": "BLOB",
}
WITHOUT_TLS = {
    "fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "fs.azure.always.use.https": "false",
    "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
}


@pytest.mark.parametrize(("options", "environ", "expected"), [
    ({}, {}, {}),
    ({"azure_storage_account_key": "key"}, {}, {"fs.azure.account.key": "key"}),
    ({}, {"AZURE_STORAGE_ACCOUNT_KEY": "key"}, {"fs.azure.account.key": "key"}),
    ({"azure_storage_sas_token": "?sv=1&sig=2"}, {"AZURE_STORAGE_ACCOUNT_KEY": "of another"}, SAS),
    ({}, {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=2"}, SAS),
    ({"azure_client_secret": "secret"}, {"AZURE_STORAGE_ACCOUNT_KEY": "of another"}, {}),
    ({"azure_storage_endpoint": "http://127.0.0.1:10000/name"}, {}, EMULATOR | WITHOUT_TLS),
    ({}, {"AZURE_STORAGE_ENDPOINT": "https://127.0.0.1:10000/name"}, EMULATOR),
    ({"azure_storage_endpoint": "https://name.blob.core.windows.net"}, {}, {}),
    ({"aws_secret_access_key": "secret"}, {"AWS_REGION": "r"}, {}),
])  # fmt: skip
def test_options_and_variables_become_settings_of_abfs(
    options: dict[str, str], environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert abfs_settings(options, environ) == expected


@pytest.mark.spark
@pytest.mark.parametrize(("root", "account"), [
    ("abfss://c@name.dfs.core.windows.net/root", ".name.dfs.core.windows.net"),
    ("s3://bucket/root", ""),
])  # fmt: skip
def test_a_token_is_only_for_the_account_of_a_root_in_azure(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, root: str, account: str
) -> None:
    assert spark.sparkContext._jsc is not None
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    names = {f"{name}{of}" for name in SAS for of in ("", ".name.dfs.core.windows.net")}
    before = {name: hadoop.get(name) for name in names}
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=2")
    try:
        for name in names:
            hadoop.unset(name)
        with patch.dict(spark.sparkContext.environment):
            open_stores(spark.sparkContext, root)
        found = {name: hadoop.get(name) for name in names}
    finally:
        for name, value in before.items():
            hadoop.unset(name) if value is None else hadoop.set(name, value)
    assert {name: value for name, value in found.items() if value is not None} == {
        f"{name}{account}": value for name, value in SAS.items()
    }


@pytest.mark.spark
def test_spark_opens_these_roots_and_names_the_connector_for_others(spark: SparkSession, tmp_path: Path) -> None:
    for root in (
        str(tmp_path),
        f"file://{tmp_path}",
        "s3://bucket/root",
        "abfss://c@a.dfs.core.windows.net/root",
        "hdfs://host:8020/r",
    ):
        require_file_system(spark, root)
    for root, connector in (("gs://bucket", "gcs-connector"), ("az://container", "abfss://")):
        with pytest.raises(ConfigError, match=rf"^root {root}: Spark has no file system for .*{connector}"):
            require_file_system(spark, root)
