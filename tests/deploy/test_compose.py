"""deploy/compose.yaml: its environments, commands and mounts are what there is."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sidecar.settings import load
from tests.deploy.charts import EXAMPLE
from tests.deploy.program import parse
from tests.deploy.test_image import STAGES, last
from tests.deploy.tools import DEPLOY, run

COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
OURS: Final = {name: each for name, each in SERVICES.items() if each["image"].startswith("retry-sidecar:")}


def test_there_is_a_cluster_a_sidecar_an_application_and_what_watches_them() -> None:
    assert {"kafka", "sidecar", "consumer", "prometheus", "grafana"} <= SERVICES.keys()
    assert SERVICES["sidecar"]["build"]["target"] in STAGES
    assert (DEPLOY / SERVICES["sidecar"]["build"]["context"] / "Dockerfile").is_file()


@pytest.mark.parametrize("name", OURS)
def test_every_setting_is_one_that_the_program_knows_and_takes(name: str) -> None:
    # What has no value is handed on from the shell.
    environ = {key: value or "from-the-shell-of-the-user" for key, value in SERVICES[name]["environment"].items()}
    settings = load(environ=environ)
    assert settings.warnings == ()
    assert settings.origins.keys() == {
        key.removeprefix("KAFKA_RETRY_") for key in environ if key[:12] == "KAFKA_RETRY_"
    }


def test_the_sidecar_reaches_the_broker_that_the_compose_file_starts() -> None:
    listeners = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    address = SERVICES["sidecar"]["environment"]["KAFKA_RETRY_BOOTSTRAP_SERVERS"]
    assert listeners == f"PLAINTEXT://{address}"
    assert address.split(":")[0] in SERVICES
    created = SERVICES["origin"]["command"]
    assert created[created.index("--topic") + 1] == SERVICES["sidecar"]["environment"]["KAFKA_RETRY_ORIGIN_TOPICS"]


def test_commands_are_those_of_the_program() -> None:
    assert parse(SERVICES["traffic"]["command"]) == "send"
    probe = SERVICES["sidecar"]["healthcheck"]["test"]
    assert probe[:2] == ["CMD", "retry-sidecar"]
    assert parse(probe[2:]) == "health"


def test_the_application_reads_what_it_is_given() -> None:
    tree = ast.parse((EXAMPLE / "files" / "consumer.py").read_text(encoding="utf-8"))
    asked = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "os.environ.get"
        and isinstance(node.args[0], ast.Constant)
    }
    assert SERVICES["consumer"]["environment"].keys() <= asked


@pytest.mark.parametrize("name", SERVICES)
def test_every_mount_is_a_volume_or_a_file_of_the_repository(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source = mount.split(":")[0]
        assert source in COMPOSE["volumes"] or (DEPLOY / source).exists()
    for each in SERVICES[name].get("depends_on", []):
        assert each in SERVICES


@pytest.mark.parametrize("name", OURS)
def test_our_containers_can_write_nothing_but_their_volumes(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    writable = [mount.split(":")[1] for mount in service.get("volumes", []) if not mount.endswith(":ro")]
    assert set(writable) <= {last("sidecar", "VOLUME").strip('["]')}


def test_nothing_is_open_to_other_machines() -> None:
    ports = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_promtool_takes_the_configuration_of_prometheus(promtool: Path, tmp_path: Path) -> None:
    for mount in SERVICES["prometheus"]["volumes"]:
        source, target, _ = mount.split(":")
        shutil.copy(DEPLOY / source, tmp_path / Path(target).name)
    done = run(promtool, ["check", "config", str(tmp_path / "prometheus.yml")])
    assert done.returncode == 0, done.stderr
    assert "1 rule files found" in done.stdout


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    source = yaml.safe_load((DEPLOY / "compose" / "grafana-datasource.yaml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((DEPLOY / "compose" / "grafana-dashboards.yaml").read_text(encoding="utf-8"))
    folder = provider["providers"][0]["options"]["path"]
    assert f"./grafana:{folder}:ro" in SERVICES["grafana"]["volumes"]
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].startswith(f"{folder}/")
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    assert [each["job_name"] for each in scraped] == ["retry-sidecar"]
    assert scraped[0]["static_configs"] == [{"targets": ["sidecar:8080"]}]
