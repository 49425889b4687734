"""What the chart retry-sidecar makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sidecar import __version__
from sidecar.settings import Settings
from tests.deploy.charts import APPLICATION, CASES, EXAMPLE, Helm, Manifest, Rendered, containers, env
from tests.deploy.tools import DEPLOY

RULES = DEPLOY / "prometheus" / "rules.yaml"


def case(name: str) -> Path:
    """Return a file of values."""
    (found,) = [path for path in CASES if path.stem == f"{name}-values"]
    return found


@pytest.fixture(scope="module")
def default(helm: Helm) -> Rendered:
    """The chart with the least that must be said."""
    return helm.render(APPLICATION, case("default"))


def selected(labels: Manifest, selector: Manifest) -> bool:
    """Tell whether matchLabels choose these labels."""
    return selector.items() <= labels.items()


def test_pods_have_stable_names_and_start_in_parallel(default: Rendered) -> None:
    assert default.workload["kind"] == "StatefulSet"
    assert default.workload["spec"]["podManagementPolicy"] == "Parallel"
    name = env(default.sidecar)["KAFKA_RETRY_INSTANCE_ID"]
    assert name == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_state_is_a_claim_of_each_pod(default: Rendered) -> None:
    (claim,) = default.workload["spec"]["volumeClaimTemplates"]
    (mount,) = [each for each in default.sidecar["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    assert mount["mountPath"] == env(default.sidecar)["KAFKA_RETRY_STATE_DIR"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    retention = default.workload["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_without_a_volume_state_is_an_empty_folder_of_that_size(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("no-disk"))
    assert "volumeClaimTemplates" not in rendered.workload["spec"]
    assert {"name": "retry-sidecar-state", "emptyDir": {"sizeLimit": "2Gi"}} in rendered.pod["volumes"]


@pytest.mark.parametrize(
    ("probe", "path"), [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
)
def test_probes_ask_over_http(default: Rendered, probe: str, path: str) -> None:
    assert default.sidecar[probe]["httpGet"] == {"path": path, "port": "http"}
    (port,) = default.sidecar["ports"]
    assert str(port["containerPort"]) == env(default.sidecar)["KAFKA_RETRY_HTTP_PORT"]
    # A sidecar is given a minute to answer before it is called dead.
    assert (
        default.sidecar["livenessProbe"]["periodSeconds"] * default.sidecar["livenessProbe"]["failureThreshold"] >= 60
    )


def test_a_probe_can_be_taken_away(helm: Helm) -> None:
    assert "readinessProbe" not in helm.render(APPLICATION, case("no-disk")).sidecar


@pytest.mark.parametrize("chart", [APPLICATION, EXAMPLE], ids=lambda path: path.name)
def test_kubernetes_waits_longer_than_the_program_takes_to_stop(helm: Helm, chart: Path) -> None:
    files = [case("default")] if chart is APPLICATION else []
    rendered = helm.render(chart, *files)
    shutdown_s = Settings().shutdown_timeout_ms / 1000
    assert env(rendered.sidecar)["KAFKA_RETRY_SHUTDOWN_TIMEOUT"] == f"{shutdown_s:.0f}s"
    assert rendered.pod["terminationGracePeriodSeconds"] >= shutdown_s + 15


def test_a_change_of_the_settings_rolls_the_pods(helm: Helm, default: Rendered) -> None:
    def checksum(rendered: Rendered) -> str:
        return str(rendered.workload["spec"]["template"]["metadata"]["annotations"]["checksum/retry-sidecar-config"])

    changed = helm.render(APPLICATION, case("default"), values=["config.delays=1m"])
    assert checksum(changed) != checksum(default)
    assert checksum(helm.render(APPLICATION, case("default"), values=["replicaCount=5"])) == checksum(default)


def test_services_and_budget_choose_the_pods(default: Rendered) -> None:
    labels = default.workload["spec"]["template"]["metadata"]["labels"]
    for service in default.all("Service"):
        assert selected(labels, service["spec"]["selector"])
    assert selected(labels, default.workload["spec"]["selector"]["matchLabels"])
    headless = default.one("Service", "-pods")
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["metadata"]["name"] == default.workload["spec"]["serviceName"]
    budget = default.one("PodDisruptionBudget")
    assert selected(labels, budget["spec"]["selector"]["matchLabels"])
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_test_pod_is_not_taken_for_an_instance(default: Rendered) -> None:
    pod = default.one("Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert not selected(pod["metadata"]["labels"], default.one("Service", "-pods")["spec"]["selector"])


def test_a_single_instance_has_no_budget_that_could_only_block(helm: Helm) -> None:
    assert "PodDisruptionBudget" not in helm.render(APPLICATION, case("no-disk")).kinds()


def test_the_program_gets_no_token_of_the_cluster(default: Rendered) -> None:
    for pod in default.pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
    assert default.one("ServiceAccount")["automountServiceAccountToken"] is False


def test_passwords_and_token_come_from_secrets_only(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("strimzi-scram"))
    given = env(rendered.sidecar)
    assert given["KAFKA_RETRY_CLIENT_SASL_PASSWORD"] == {"secretKeyRef": {"name": "retry-sidecar", "key": "password"}}
    assert given["KAFKA_RETRY_API_TOKEN"] == {"secretKeyRef": {"name": "retry-sidecar-api", "key": "token"}}
    assert "password" not in rendered.config_text()


def test_with_a_certificate_the_server_its_probes_and_the_other_instances_speak_https(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("plain-secrets"), values=["podMonitor.enabled=true"])
    given = env(rendered.sidecar)
    assert given["KAFKA_RETRY_API_READ_TOKEN"] == {"secretKeyRef": {"name": "kafka-login", "key": "api-read-token"}}
    mounts = {each["name"]: each["mountPath"] for each in rendered.sidecar["volumeMounts"]}
    secrets = {each["name"]: each["secret"] for each in rendered.pod["volumes"] if "secret" in each}
    assert secrets["retry-sidecar-http"]["secretName"] == "retry-sidecar-http"
    for name, key in (("CERT", "tls.crt"), ("KEY", "tls.key"), ("CA", "ca.crt")):
        assert given[f"KAFKA_RETRY_HTTP_TLS_{name}"] == f"{mounts['retry-sidecar-http']}/{key}"
    service = rendered.workload["spec"]["serviceName"]
    advertised = given["KAFKA_RETRY_HTTP_ADVERTISED_URL"]
    assert advertised.startswith(f"https://$(KAFKA_RETRY_INSTANCE_ID).{service}.")
    assert advertised.endswith(".svc:8080")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert rendered.sidecar[probe]["httpGet"]["scheme"] == "HTTPS"
    assert rendered.one("PodMonitor")["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    plain = helm.render(APPLICATION, case("strimzi-scram"), values=["podMonitor.enabled=true"])
    assert "scheme" not in plain.sidecar["livenessProbe"]["httpGet"]
    assert "scheme" not in plain.one("PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert not any("TLS" in name for name in env(plain.sidecar))


def test_certificates_are_mounted_where_the_client_looks_for_them(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("strimzi-tls"))
    client = rendered.config()["client"]
    mounts = {each["name"]: each["mountPath"] for each in rendered.sidecar["volumeMounts"]}
    secrets = {each["name"]: each["secret"] for each in rendered.pod["volumes"] if "secret" in each}
    files = {
        f"{mounts[name]}/{item['path']}": (secret["secretName"], item["key"])
        for name, secret in secrets.items()
        for item in secret["items"]
    }
    assert client["security.protocol"] == "SSL"
    assert files[client["ssl.ca.location"]] == ("my-cluster-cluster-ca-cert", "ca.crt")
    assert files[client["ssl.certificate.location"]] == ("retry-sidecar", "user.crt")
    assert files[client["ssl.key.location"]] == ("retry-sidecar", "user.key")


def test_a_property_that_the_user_gives_wins(helm: Helm) -> None:
    rendered = helm.render(
        APPLICATION, case("strimzi-scram"), values=[r"config.client.ssl\.ca\.location=/etc/ssl/certs/own.pem"]
    )
    assert rendered.config()["client"]["ssl.ca.location"] == "/etc/ssl/certs/own.pem"
    assert rendered.config()["client"]["security.protocol"] == "SASL_SSL"


def test_both_monitors_give_the_job_that_the_alerts_know(helm: Helm) -> None:
    pod_monitor = helm.render(APPLICATION, case("monitoring")).one("PodMonitor")
    service_monitor = helm.render(APPLICATION, case("service-monitor")).one("ServiceMonitor")
    for endpoint in (*pod_monitor["spec"]["podMetricsEndpoints"], *service_monitor["spec"]["endpoints"]):
        assert {"targetLabel": "job", "replacement": "retry-sidecar"} in endpoint["relabelings"]
        assert (endpoint["path"], endpoint["port"]) == ("/metrics", "http")
    assert pod_monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_service_monitor_counts_each_instance_once(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("service-monitor"))
    selector = rendered.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    chosen = [each for each in rendered.all("Service") if selected(each["metadata"]["labels"], selector)]
    assert len(chosen) == 1


def test_the_rule_has_the_alerts_of_the_repository(helm: Helm) -> None:
    rule = helm.render(APPLICATION, case("monitoring")).one("PrometheusRule")
    wanted = yaml.safe_load(
        RULES.read_text(encoding="utf-8").replace("docs/how-to/runbook.md", "https://wiki.example.com/retry-sidecar")
    )
    for group in wanted["groups"]:
        group["rules"] = [each for each in group["rules"] if each["alert"] != "RetrySidecarClockSkew"]
    assert rule["spec"]["groups"] == wanted["groups"]


def test_the_dashboard_is_the_one_of_the_repository(helm: Helm) -> None:
    data = helm.render(APPLICATION, case("monitoring")).one("ConfigMap", "-dashboard")["data"]
    (text,) = data.values()
    assert json.loads(text) == json.loads((DEPLOY / "grafana" / "retry-sidecar.json").read_text(encoding="utf-8"))


def test_the_network_policy_lets_through_what_the_program_needs(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("monitoring"))
    policy = rendered.one("NetworkPolicy")["spec"]
    labels = rendered.workload["spec"]["template"]["metadata"]["labels"]
    test_labels = rendered.one("Pod")["metadata"]["labels"]
    assert selected(labels, policy["podSelector"]["matchLabels"])
    (ingress,) = policy["ingress"]
    own = [each["podSelector"]["matchLabels"] for each in ingress["from"] if "podSelector" in each]
    assert any(selected(labels, each) for each in own)
    assert any(selected(test_labels, each) for each in own)
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 8080, 9093}


def test_spread_is_over_the_pods_of_the_release(default: Rendered) -> None:
    labels = default.workload["spec"]["template"]["metadata"]["labels"]
    constraints = default.pod["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in constraints} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    for constraint in constraints:
        assert selected(labels, constraint["labelSelector"]["matchLabels"])


def test_the_image_has_the_version_of_the_program_unless_a_digest_is_given(helm: Helm, default: Rendered) -> None:
    assert default.sidecar["image"] == f"retry-sidecar:{__version__}"
    image = helm.render(APPLICATION, case("everything")).sidecar["image"]
    assert image.startswith("registry.example.com/shop/retry-sidecar@sha256:")


def test_what_is_added_by_hand_is_there(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, case("everything"))
    assert "--log-level=debug" in rendered.sidecar["args"]
    assert env(rendered.sidecar)["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert [each["name"] for each in containers(rendered.pod)] == ["wait", "retry-sidecar", "logs"]
    assert rendered.one("ConfigMap", "-extra")["metadata"]["name"] == "rel-extra"
    metadata = rendered.workload["spec"]["template"]["metadata"]
    assert metadata["labels"]["network"] == "kafka"
    assert metadata["labels"]["team"] == "shop"
    assert metadata["annotations"]["example.com/scrape"] == "false"
    assert rendered.workload["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_notes_say_what_is_missing_and_nothing_else(helm: Helm, tmp_path: Path) -> None:
    plain = helm.notes(APPLICATION, case("default"), folder=tmp_path / "plain")
    assert "helm test rel" in plain
    assert "apiToken.existingSecret is not set" in plain
    assert "Nothing scrapes /metrics" in plain
    assert "persistence.enabled is false" not in plain
    assert "HorizontalPodAutoscaler" in plain
    assert "apiToken" not in helm.notes(APPLICATION, case("strimzi-scram"), folder=tmp_path / "scram")


def test_the_packaged_chart_is_the_same(helm: Helm, default: Rendered, tmp_path: Path) -> None:
    """In the repository library, rules and dashboard are links: the package has them."""
    helm.run("package", str(APPLICATION), f"--destination={tmp_path}")
    (package,) = tmp_path.iterdir()
    assert package.name == f"retry-sidecar-{__version__}.tgz"
    assert helm.render(package, case("default")).manifests == default.manifests
    monitored = helm.render(package, case("monitoring"))
    assert monitored.manifests == helm.render(APPLICATION, case("monitoring")).manifests
