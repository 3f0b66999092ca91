"""Checks the page docs/CLUSTER.md, and the Dockerfile in docs/cluster/ with hadolint. Also checks that the manifests of
an ingest with executors agree with one another. The tests build no images and start no pods. tests/deploy checks the
other manifests.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark

from pipeline.settings import load_settings
from scripts.executor_archive import PROJECT as PACKAGES
from tests.deploy.schedules import manifests
from tests.docs.pages import PROJECT, blocks, commands, text_of

PAGE = "docs/CLUSTER.md"
FOLDER = PROJECT / "docs/cluster"
JOBS = {path.stem for path in (PROJECT / "jobs").glob("[!_]*.py")}
OF_SPARK = {"--master", "--conf", "--properties-file", "--py-files"}
TEMPLATE = "lakelog-executors"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://driver:7078", "SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "2g", "SPARK_APPLICATION_ID": "spark-1", "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "lakelog-exec-3", "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dlast=1", "SPARK_JAVA_OPT_2": "-Dwith space=a b", "SPARK_JAVA_OPT_0": "-Dfirst=1",
}  # fmt: skip


def documents() -> dict[str, dict[str, Any]]:
    """The manifests of an ingest with executors by kind. Each kind occurs once, but the template of executors has its
    own name."""
    found = manifests("volume.yaml", "settings.yaml", "ingest-with-executors.yaml")
    named = {TEMPLATE if each["metadata"]["name"] == TEMPLATE else each["kind"]: each for each in found}
    assert len(named) == len(found)
    return named


def test_the_commands_name_what_is_there() -> None:
    programs = set()
    found = [replace(block, text=re.sub(r"\\\n\s*", " ", block.text)) for block in blocks(PAGE, "sh")]
    for command in (command for block in found for command in commands(block)):
        program, *words = shlex.split(command)
        programs.add(program)
        if program == "make":
            assert re.search(rf"^{words[0]}:", (PROJECT / "Makefile").read_text(), re.MULTILINE)
            continue
        if program == "./spark-submit.sh":
            ship, job, *rest = words
            assert ship.partition("=")[0] == "--ship"
            assert job in JOBS or job == "./my_report.py", "a program of the reader"
            options = rest[rest.index("--") + 1 :]
        else:
            assert program == ".venv/bin/spark-submit"
            options = words[: words.index("jobs/export.py")]
            assert (PROJECT / "jobs/export.py").exists()
        assert set(options[::2]) <= OF_SPARK
    assert programs == {"make", "./spark-submit.sh", ".venv/bin/spark-submit"}
    assert set(re.findall(r"lakelog-(\d[\d.]*\d)-", text_of(PAGE))) == {version("lakelog")}


def test_manifests_of_an_ingest_with_executors_belong_together(tmp_path: Path) -> None:
    found = documents()
    pod = found["Deployment"]["spec"]["template"]
    (driver,) = pod["spec"]["containers"]
    at = driver["args"].index("--")
    job, *arguments = driver["args"][:at]
    options = driver["args"][at + 1 :]
    settings = dict(word.split("=", 1) for word in options[options.index("--conf") + 1 :: 2])
    assert set(options[::2]) <= OF_SPARK

    (entry,) = found["ConfigMap"]["data"].items()
    mounts = {mount["name"]: mount["mountPath"] for mount in driver["volumeMounts"]}
    assert (job, arguments) == ("ingest", ["--conf", f"{mounts['settings']}/{entry[0]}", "--json"])
    (tmp_path / entry[0]).write_text(entry[1])
    loaded = load_settings(tmp_path / entry[0], [], None, {}, lambda root: None, makes_topics=True)
    assert Path(str(loaded.root)).is_relative_to(mounts["shared"])

    names = {kind: document["metadata"]["name"] for kind, document in found.items()}
    binding = found["RoleBinding"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (names["Role"], names["ServiceAccount"])
    assert pod["spec"]["serviceAccountName"] == names["ServiceAccount"]
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == names["PersistentVolumeClaim"]
    assert volumes["settings"]["configMap"]["name"] == names["ConfigMap"]
    assert volumes["executors"]["configMap"]["name"] == names[TEMPLATE]
    (template,) = found[TEMPLATE]["data"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.shared"
    assert (
        settings.items()
        >= {
            "spark.kubernetes.container.image": driver["image"],
            "spark.driver.host": names["Service"],
            f"{volume}.options.claimName": names["PersistentVolumeClaim"],
            f"{volume}.mount.path": mounts["shared"],
            "spark.kubernetes.executor.podTemplateFile": f"{mounts['executors']}/{template}",
        }.items()
    )
    ports = {each["name"]: str(each["port"]) for each in found["Service"]["spec"]["ports"]}
    assert ports == {
        "driver": settings["spark.driver.port"],
        "blocks": settings["spark.driver.blockManager.port"],
    }


def test_dockerfile_passes_hadolint_and_copies_all_that_jobs_need() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, FOLDER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    copied = re.findall(r"^COPY --chown=spark (.*) \S+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert {source for source in sources if not (PROJECT / source).exists()} == set()
    assert {*PACKAGES, "scripts", "spark-submit.sh", "requirements.lock", "pyproject.toml"} <= sources


def test_entry_point_starts_an_executor_with_the_arguments_that_spark_reads(tmp_path: Path) -> None:
    entrypoint = tmp_path / "entrypoint.sh"
    entrypoint.write_bytes((FOLDER / "entrypoint.sh").read_bytes())
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    for name in ("java", "spark-submit.sh"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tmp_path / name).chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:{os.defpath}"} | EXECUTOR
        return subprocess.run(
            ["bash", entrypoint, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    jars = Path(pyspark.__file__).parent / "jars"
    backend = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    seen = tmp_path / ".venv" / jars.relative_to(sys.prefix)
    words = run("executor").stdout.splitlines()
    assert words[:8] == [
        "-Dfirst=1", "-Dwith space=a b", "-Dlast=1", "-Xms2g", "-Xmx2g", "-cp", f"{tmp_path}/conf:{seen}/*", backend,
    ]  # fmt: skip
    named = dict(zip(words[8::2], words[9::2], strict=True))
    assert named == {
        "--driver-url": "spark://driver:7078", "--executor-id": "3", "--cores": "2", "--app-id": "spark-1",
        "--hostname": "10.0.0.7", "--resourceProfileId": "0", "--podName": "lakelog-exec-3",
    }  # fmt: skip
    (jar,) = jars.glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as file:
        program = file.read(backend.replace(".", "/") + "$.class")
    assert all(option.encode() in program for option in named)

    assert run("maintenance", "--conf", "a b.yaml").stdout.splitlines() == ["maintenance", "--conf", "a b.yaml"]
    refused = run("driver", "--class", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "in client mode" in refused.stderr
