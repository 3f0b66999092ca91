"""The manifests of deploy/kubernetes: their schemas, their names, and the commands of their pods on a root. Pods are not
started. tests/docs/test_stories.py runs the command of the ingest, which needs Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deltalake import DeltaTable

from pipeline.settings import load_settings
from tests.deploy.conftest import ORDERS
from tests.deploy.schedules import manifests
from tests.deploy.services import run_service
from tests.docs.commands import Machine, run_job
from tests.docs.pages import PROJECT

IMAGE = "registry.example/lakelog:0.1.0"
WITH_PODS = ("Deployment", "CronJob", "Job")


def pod(document: dict[str, Any]) -> dict[str, Any]:
    """The template of the pods."""
    spec = document["spec"]
    found: dict[str, Any] = (spec["jobTemplate"]["spec"] if document["kind"] == "CronJob" else spec)["template"]
    return found


def container(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod(document)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def named(name: str) -> dict[str, Any]:
    """The only manifest with pods that has this name, apart from the ingest with executors."""
    files = ("ingest.yaml", "cronjobs.yaml", "metrics.yaml")
    (found,) = [each for each in manifests(*files) if each["kind"] in WITH_PODS and each["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("document", manifests(), ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_a_manifest_has_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.37", strict=True)


def test_pods_use_the_volume_and_the_settings_that_are_there() -> None:
    (volume,), (settings,) = manifests("volume.yaml"), manifests("settings.yaml")
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    known = {"claimName": volume["metadata"]["name"], "configMap": settings["metadata"]["name"]}
    with_pods = [each for each in manifests() if each["kind"] in WITH_PODS]
    assert len(with_pods) == 5
    for document in with_pods:
        volumes = {each["name"]: each for each in pod(document)["spec"]["volumes"]}
        mounts = {each["name"]: each["mountPath"] for each in container(document)["volumeMounts"]}
        assert volumes.keys() == mounts.keys()
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == known["claimName"]
        assert mounts["shared"] == "/mnt/shared"
        if "settings" in volumes:
            assert volumes["settings"]["configMap"]["name"] == known["configMap"]
            file = Path(container(document)["args"][2])
            assert (str(file.parent), file.name) == (mounts["settings"], *settings["data"])
        assert container(document)["image"] == IMAGE
        assert "selector" not in document["spec"] or (
            document["spec"]["selector"]["matchLabels"] == pod(document)["metadata"]["labels"]
        )


def test_two_ingests_never_run_at_the_same_time_and_jobs_do_not_overlap() -> None:
    for file in ("ingest.yaml", "ingest-with-executors.yaml"):
        (ingest,) = [each["spec"] for each in manifests(file) if each["kind"] in WITH_PODS]
        assert (ingest["replicas"], ingest["strategy"]) == (1, {"type": "Recreate"})
    for name in ("lakelog-maintenance", "lakelog-exports"):
        assert named(name)["spec"]["concurrencyPolicy"] == "Forbid"
        (rule,) = named(name)["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        assert rule["onExitCodes"]["containerName"] == container(named(name))["name"]


@pytest.mark.parametrize("file", ["ingest.yaml", "ingest-with-executors.yaml", "metrics.yaml"])
def test_what_runs_for_ever_is_started_again_after_every_status(file: str) -> None:
    """A drained node ends an ingest with status 0. A Job would then be complete, or reach its limit of failures."""
    (document,) = [each for each in manifests(file) if each["kind"] in WITH_PODS]
    assert document["kind"] in {"Deployment", "StatefulSet"}
    assert pod(document)["spec"].get("restartPolicy", "Always") == "Always"


def test_the_cron_jobs_run_and_their_lines_are_json(machine: Machine) -> None:
    (settings,) = manifests("settings.yaml")
    file = machine.folder / "etc/lakelog/orders.yaml"
    file.write_text(machine.local(settings["data"]["orders.yaml"]))
    assert str(load_settings(file).root) == str(machine.folder / "mnt/shared/lakelog")
    jobs = []
    for name in ("lakelog-maintenance", "lakelog-exports"):
        job, *words = [machine.local(word) for word in container(named(name))["args"]]
        ended = run_job(job, "--set", "broker.log.retention.hours=1", *words)
        result = json.loads(ended.out)
        (warning,) = [json.loads(line) for line in ended.err.splitlines()]
        assert (warning["job"], warning["level"]) == (job, "warning")
        assert warning["message"].startswith("--set broker.log.retention.hours: ")
        jobs.append((result["job"], ended.status, result["failures"]))
    assert jobs == [("maintenance", 0, []), ("export", 0, [])]
    table = DeltaTable(machine.folder / "mnt/shared/lakelog/tables/orders")
    assert table.to_pyarrow_table().num_rows == ORDERS


def test_the_service_of_the_metrics_leads_to_the_command(machine: Machine) -> None:
    (service,) = [each for each in manifests("metrics.yaml") if each["kind"] == "Service"]
    metrics = container(named("lakelog-metrics"))
    (port,) = metrics["ports"]
    listen = metrics["args"][metrics["args"].index("--listen") + 1]
    assert listen == f"0.0.0.0:{port['containerPort']}"
    assert service["spec"]["selector"] == pod(named("lakelog-metrics"))["metadata"]["labels"]
    (of_service,) = service["spec"]["ports"]
    assert (of_service["targetPort"], of_service["port"]) == (port["name"], port["containerPort"])
    assert service["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert metrics["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}

    (program,) = metrics["command"]
    assert program.startswith("/opt/lakelog/.venv/bin/")
    words = [word.replace(listen, "127.0.0.1:0") for word in metrics["args"]]
    status, lines = run_service(machine, " ".join([program, *words]), until="metrics at http://")
    assert (status, len(lines)) == (0, 1)


def test_the_image_has_what_the_commands_need() -> None:
    dockerfile = (PROJECT / "docs/cluster/Dockerfile").read_text()
    assert f"-t {IMAGE} " in dockerfile
    assert "USER 185\n" in dockerfile


def test_every_pod_can_write_to_the_volume() -> None:
    """The group of the image's user, for the pods of the manifests, and for those that Spark creates."""
    (template,) = [each for each in manifests("ingest-with-executors.yaml") if each["kind"] == "ConfigMap"]
    (text,) = template["data"].values()
    of_executors = yaml.safe_load(text)
    kubernetes_validate.validate(of_executors, "1.37", strict=True)
    pods = [pod(each)["spec"] for each in manifests() if each["kind"] in WITH_PODS]
    for spec in [*pods, of_executors["spec"]]:
        assert spec["securityContext"]["fsGroup"] == 185
        assert spec["securityContext"]["runAsNonRoot"] is True
