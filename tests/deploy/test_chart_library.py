"""The sidecar in somebody else's pods: the chart retry-sidecar-lib, as its example uses it."""

from __future__ import annotations

import ast

import pytest

from tests.deploy.charts import EXAMPLE, Helm, Rendered, env


@pytest.fixture(scope="module")
def example(helm: Helm) -> Rendered:
    """The example as it is."""
    return helm.render(EXAMPLE)


def test_the_sidecar_is_native_and_the_application_starts_after_it(example: Rendered) -> None:
    (sidecar,) = example.pod["initContainers"]
    assert sidecar is example.sidecar
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"] == {"path": "/livez", "port": "retry-http"}
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "retry-http"}
    assert sidecar["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "retry-http"}


def test_a_pod_without_a_stable_name_keeps_its_instance_id_in_the_state_folder(example: Rendered) -> None:
    given = env(example.sidecar)
    assert "KAFKA_RETRY_INSTANCE_ID" not in given
    (mount,) = [each for each in example.sidecar["volumeMounts"] if each["mountPath"] == given["KAFKA_RETRY_STATE_DIR"]]
    (volume,) = [each for each in example.pod["volumes"] if each["name"] == mount["name"]]
    # It survives the container, so the id does too; it does not survive the pod.
    assert volume["emptyDir"] == {"sizeLimit": "4Gi"}


def test_the_grace_period_is_for_the_application_and_the_sidecar(helm: Helm) -> None:
    rendered = helm.render(EXAMPLE, values=["stopSeconds=100", "retrySidecar.shutdownTimeoutSeconds=40"])
    assert rendered.pod["terminationGracePeriodSeconds"] == 100 + 40 + 15
    assert env(rendered.sidecar)["KAFKA_RETRY_SHUTDOWN_TIMEOUT"] == "40s"


def test_the_port_is_none_that_an_application_is_likely_to_have(example: Rendered) -> None:
    (port,) = example.sidecar["ports"]
    assert port["containerPort"] != 8080
    assert port["name"] != "http"


def test_the_pod_monitor_asks_the_port_of_the_sidecar(helm: Helm) -> None:
    rendered = helm.render(EXAMPLE, values=["podMonitor.enabled=true"])
    monitor = rendered.one("PodMonitor")["spec"]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == [rendered.sidecar["ports"][0]["name"]]
    labels = rendered.workload["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()


def test_values_of_the_library_reach_the_container(helm: Helm) -> None:
    rendered = helm.render(
        EXAMPLE,
        values=[
            "retrySidecar.image.repository=registry.example.com/retry",
            "retrySidecar.kafka.sasl.mechanism=SCRAM-SHA-512",
            "retrySidecar.kafka.sasl.username=shop",
            "retrySidecar.kafka.sasl.existingSecret=shop",
            "retrySidecar.readinessProbe.enabled=false",
            "retrySidecar.extraEnv[0].name=A",
            "retrySidecar.extraEnv[0].value=b",
        ],
    )
    assert rendered.sidecar["image"].startswith("registry.example.com/retry:")
    assert env(rendered.sidecar)["KAFKA_RETRY_CLIENT_SASL_USERNAME"] == "shop"
    assert env(rendered.sidecar)["A"] == "b"
    assert "readinessProbe" not in rendered.sidecar
    assert rendered.config()["client"] == {"sasl.mechanism": "SCRAM-SHA-512", "security.protocol": "SASL_PLAINTEXT"}


def test_the_application_of_the_example_is_a_program(example: Rendered) -> None:
    text = example.one("ConfigMap", "-consumer")["data"]["consumer.py"]
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert "Retrying" in names
