"""What the charts put into the environment and the file is what the program knows: they cannot drift apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.chart_schema import SET_BY_THE_CHART, application
from sidecar.settings import SETTINGS
from tests.deploy.charts import APPLICATION, CASES, EXAMPLE, Helm, Rendered, containers, env
from tests.deploy.program import effective, parse, start, usage_is_wrong

POD = "rel-retry-sidecar-0"
SECRET = "https://from-the-cluster/secret"


def environment(rendered: Rendered, folder: Path) -> dict[str, str]:
    """Return the environment as the kubelet would make it, with the ConfigMap where this test can write."""
    made = {}
    for name, value in env(rendered.sidecar).items():
        if isinstance(value, str):
            made[name] = value.replace("$(KAFKA_RETRY_INSTANCE_ID)", POD)
        elif value.get("fieldRef") == {"fieldPath": "metadata.name"}:
            made[name] = POD
        else:
            made[name] = f"{SECRET}/{value['secretKeyRef']['key']}"
    path = folder / "config.yaml"
    path.write_text(rendered.config_text(), encoding="utf-8")
    (mount,) = [each for each in rendered.sidecar["volumeMounts"] if each["name"] == "retry-sidecar-config"]
    assert made["KAFKA_RETRY_CONFIG"] == f"{mount['mountPath']}/config.yaml"
    return {**made, "KAFKA_RETRY_CONFIG": str(path)}


@pytest.mark.parametrize("case", [*CASES, EXAMPLE], ids=lambda path: path.stem)
def test_the_program_takes_what_is_rendered_and_uses_all_of_it(helm: Helm, case: Path, tmp_path: Path) -> None:
    rendered = helm.render(EXAMPLE) if case is EXAMPLE else helm.render(APPLICATION, case)
    given = environment(rendered, tmp_path)
    settings = effective(rendered.sidecar["args"], given)
    for key in rendered.config().keys() - {"client", "log_level"}:
        assert settings[key.upper()].origin.startswith(str(tmp_path)), key
    for name, value in rendered.config().get("client", {}).items():
        assert settings[f"client.{name}"].value == (str(value).lower() if isinstance(value, bool) else value)
    for name in given:
        of_setting = name.startswith("KAFKA_RETRY_") and name != "KAFKA_RETRY_CONFIG"
        if of_setting and not name.startswith("KAFKA_RETRY_CLIENT_"):
            assert settings[name.removeprefix("KAFKA_RETRY_")].origin == f"environment {name}"
    assert settings["ORIGIN_TOPICS"].value != "*"
    is_stable = case is not EXAMPLE
    assert settings["INSTANCE_ID"].value == (POD if is_stable else "(an id kept in STATE_DIR)")


def test_what_a_user_of_the_library_takes_away_with_null_is_left_out(helm: Helm) -> None:
    """Helm keeps a null where a parent's value was; the program takes no empty value."""
    assert "delays" in helm.render(EXAMPLE).config()
    assert "delays" not in helm.render(EXAMPLE, values=["retrySidecar.config.delays=null"]).config()


def test_a_login_is_complete(helm: Helm, tmp_path: Path) -> None:
    (case,) = [path for path in CASES if path.stem == "plain-secrets-values"]
    rendered = helm.render(APPLICATION, case)
    settings = effective(rendered.sidecar["args"], environment(rendered, tmp_path))
    assert settings["client.security.protocol"].value == "SASL_SSL"
    assert settings["client.sasl.mechanism"].value == "PLAIN"
    assert settings["client.sasl.username"].value == f"{SECRET}/username"
    assert settings["client.sasl.password"].value == "***"
    assert settings["API_TOKEN"].value == "***"
    assert settings["NOTIFY_URL"].value == "***"


def test_settings_that_contradict_each_other_stop_the_program_with_their_names(helm: Helm, tmp_path: Path) -> None:
    """The schema looks at single values only."""
    rendered = helm.render(APPLICATION, CASES[0], values=["config.dlq_topic=retry"])
    done = start([*rendered.sidecar["args"], "--show-settings"], environment(rendered, tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("INPUT_TOPIC and DLQ_TOPIC: both are 'retry': ")


def test_every_setting_can_be_given_or_is_set_by_the_chart() -> None:
    """A setting that the schema does not know could not be used; one of both kinds could contradict itself."""
    known = json.loads(application())["properties"]["config"]["properties"].keys() - {"client"}
    assert {setting.yaml_key for setting in SETTINGS} == known | {name.lower() for name in SET_BY_THE_CHART}
    assert not known & {name.lower() for name in SET_BY_THE_CHART}


def test_the_test_pod_calls_commands_that_there_are(helm: Helm) -> None:
    pod = helm.render(APPLICATION, CASES[0]).one("Pod")["spec"]
    assert [parse(container["args"]) for container in containers(pod)] == ["health", "doctor"]
    assert usage_is_wrong(["health", "--redy"])


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_every_container_that_has_settings_names_their_file(helm: Helm, case: Path) -> None:
    for pod in helm.render(APPLICATION, case).pods():
        for container in containers(pod):
            mounts = {each["name"]: each["mountPath"] for each in container.get("volumeMounts", [])}
            if "retry-sidecar-config" in mounts:
                assert env(container)["KAFKA_RETRY_CONFIG"] == f"{mounts['retry-sidecar-config']}/config.yaml"
                assert not any("--config" in each for each in container["args"])
