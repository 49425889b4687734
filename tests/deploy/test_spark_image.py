"""The image on Kubernetes: its entry point starts what Spark asks for, and the manifests fit the operator and Spark."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from sidecar.settings import load
from tests.deploy.custom_kinds import assert_known
from tests.deploy.program import parse
from tests.deploy.test_image import last, words
from tests.deploy.tools import DEPLOY, REPOSITORY

ENTRYPOINT: Final = DEPLOY / "image" / "spark-entrypoint.sh"
FOLDER: Final = DEPLOY / "kubernetes" / "spark"
BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
EXECUTOR: Final = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "2048m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "retry-exec-3",
}


@pytest.fixture
def container(tmp_path: Path) -> dict[str, str]:
    """The environment of a container in which every program prints how it was called."""
    programs = [tmp_path / "jre/bin/java", tmp_path / "spark/bin/spark-submit", tmp_path / "bin/retry-sidecar"]
    for program in programs:
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    return {
        "PATH": f"{tmp_path}/bin:{tmp_path}/jre/bin:{os.environ['PATH']}",
        "SPARK_HOME": str(tmp_path / "spark"),
    }


def called(container: dict[str, str], *arguments: str, **more: str) -> list[str]:
    done = subprocess.run(
        [str(ENTRYPOINT), *arguments], env={**container, **more}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_any_command_is_one_of_retry_sidecar(container: dict[str, str]) -> None:
    assert called(container, "spark", "run", "--checkpoint", "file:///a b") == [
        *("retry-sidecar", "spark", "run", "--checkpoint", "file:///a b")
    ]
    assert called(container) == ["retry-sidecar"]


def test_a_driver_is_submitted_in_its_own_pod(container: dict[str, str]) -> None:
    given = ("--properties-file", "/opt/spark/conf/spark.properties", "local:///app.py", "spark", "run")
    assert called(container, "driver", *given, SPARK_DRIVER_BIND_ADDRESS="10.0.0.9") == [
        *("spark-submit", "--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.9"),
        *given,
    ]


def test_an_executor_gets_what_its_environment_says(container: dict[str, str]) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number} of 12" for number in range(12)}
    said = called(container, "executor", **EXECUTOR, **options, SPARK_CLASSPATH="/more/*")
    assert said[:13] == ["java", *(options[f"SPARK_JAVA_OPT_{number}"] for number in range(12))]
    assert said[13:15] == ["-Xms2048m", "-Xmx2048m"]
    home = container["SPARK_HOME"]
    assert said[15:18] == ["-cp", f"{home}/conf:/more/*:{home}/jars/*", BACKEND]
    assert dict(zip(said[18::2], said[19::2], strict=True)) == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "retry-exec-3",
    }


def test_an_executor_without_its_environment_says_what_is_missing(container: dict[str, str]) -> None:
    done = subprocess.run([str(ENTRYPOINT), "executor"], env=container, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "SPARK_EXECUTOR_MEMORY" in done.stderr


def test_the_installed_spark_has_the_backend_and_asks_for_these_variables() -> None:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        pytest.skip("PySpark is not installed: pip install -e '.[spark]'")
    (jar,) = (Path(found.origin).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        backend = classes.read(f"{BACKEND.replace('.', '/')}$.class")
        constants = classes.read("org/apache/spark/deploy/k8s/Constants$.class")
    for option in (b"--driver-url", b"--executor-id", b"--cores", b"--app-id", b"--hostname", b"--resourceProfileId"):
        assert option in backend
    assert b"--podName" in backend
    for name in (*EXECUTOR, "SPARK_JAVA_OPT_", "SPARK_DRIVER_BIND_ADDRESS", "SPARK_CLASSPATH", "/opt/spark/conf"):
        assert name.encode() in constants, name


def test_the_image_starts_with_the_entry_point_and_has_what_it_uses() -> None:
    copied = [rest for word, rest in _spark_stage() if word == "COPY" and ENTRYPOINT.name in rest]
    assert len(copied) == 1
    assert words(last("spark", "ENTRYPOINT"))[-1] == f"{copied[0].split()[-1]}{ENTRYPOINT.name}"
    assert "SPARK_HOME=/opt/spark" in last("spark", "ENV")
    assert ENTRYPOINT.stat().st_mode & 0o111


def _spark_stage() -> list[tuple[str, str]]:
    from tests.deploy.test_image import stage

    return stage("spark")


# The manifests


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")) if each]


def test_the_application_fits_the_operator_the_image_and_the_program() -> None:
    (application,) = documents("sparkapplication.yaml")
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert_known(application)
    spec = application["spec"]
    lock = (REPOSITORY / "requirements" / "image-spark.lock").read_text(encoding="utf-8")
    assert f"\npyspark=={spec['sparkVersion']} " in lock
    assert parse(spec["arguments"]) == "spark run"
    app = spec["mainApplicationFile"].removeprefix("local://")
    assert (DEPLOY / "image" / Path(app).name).is_file()
    assert str(Path(app).parent) == "/opt/retry-sidecar"
    cores = spec["executor"]["instances"] * spec["executor"]["cores"]
    assert int(spec["arguments"][spec["arguments"].index("--state-partitions") + 1]) == cores
    for role in ("driver", "executor"):
        context = spec[role]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == last("spark", "USER")
        assert context["runAsNonRoot"] is True


def test_the_settings_of_the_application_are_settings() -> None:
    (application,) = documents("sparkapplication.yaml")
    given = {each["name"]: each.get("value", "a-token-of-sixteen") for each in application["spec"]["driver"]["env"]}
    settings = load(environ=given)
    assert settings.warnings == ()
    assert settings.origin_topics == ("orders", "payments")


def test_kubernetes_takes_service_and_rights_and_they_are_those_of_the_driver() -> None:
    (application,) = documents("sparkapplication.yaml")
    account, role, binding = documents("rbac.yaml")
    (service,) = documents("service.yaml")
    for manifest in (account, role, binding, service):
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    driver = application["spec"]["driver"]
    assert driver["serviceAccount"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    allowed = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}
    assert allowed.keys() == {"pods", "configmaps", "persistentvolumeclaims", "services"}
    assert all({"create", "get", "list", "watch", "delete"} <= set(verbs) for verbs in allowed.values())
    selector = dict(service["spec"]["selector"])
    assert selector.pop("spark-role") == "driver"
    assert selector.items() <= driver["labels"].items()
