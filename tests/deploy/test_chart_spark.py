"""The chart with the Spark engine: one driver, the executors' pods, and what the driver may do."""

from __future__ import annotations

from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.charts import APPLICATION, Helm, Manifest, Rendered, RenderFailed, env
from tests.deploy.program import parse
from tests.deploy.test_chart_matrix import VERSIONS, assert_restricted, assert_valid
from tests.deploy.tools import DEPLOY

VALUES: Final = DEPLOY / "helm" / "examples" / "spark-values.yaml"
EXECUTOR: Final = {"app.kubernetes.io/component": "spark-executor", "app.kubernetes.io/instance": "rel"}


@pytest.fixture(scope="module")
def spark(helm: Helm) -> Rendered:
    return helm.render(APPLICATION, VALUES)


def executor(rendered: Rendered) -> Manifest:
    """Return the template of the executors' pods, as Spark completes it."""
    pod: Manifest = yaml.safe_load(rendered.one("ConfigMap", "-executor")["data"]["pod.yaml"])
    return pod


def conf(rendered: Rendered) -> dict[str, str]:
    given = [each.removeprefix("--conf=") for each in rendered.sidecar["args"] if each.startswith("--conf=")]
    return dict(each.split("=", 1) for each in given)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_driver_and_executors(helm: Helm, version: str) -> None:
    rendered = helm.render(APPLICATION, VALUES, values=["networkPolicy.enabled=true"], kubernetes=version)
    assert_valid(rendered, version)
    assert_restricted(rendered.pod)
    template = executor(rendered)
    (container,) = template["spec"]["containers"]
    container["image"] = "the driver's"
    kubernetes_validate.validate(template | {"metadata": {"name": "e", **template["metadata"]}}, version, strict=True)
    assert_restricted(template["spec"])


def test_the_arguments_are_those_of_the_program(spark: Rendered) -> None:
    arguments = spark.sidecar["args"]
    assert parse(arguments) == "spark run"
    assert {"--checkpoint=s3a://retry-sidecar/checkpoint", "--state-partitions=8", "--trigger=500ms"} <= set(arguments)
    properties = conf(spark)
    assert properties["spark.kubernetes.container.image"] == spark.sidecar["image"]
    assert properties["spark.kubernetes.namespace"] == "shop"
    assert properties["spark.executor.instances"] == "4"
    assert properties["spark.jars.packages"].startswith("org.apache.hadoop:hadoop-aws:")
    named = {f"$({name})" for name in env(spark.sidecar)}
    assert {properties["spark.driver.host"], properties["spark.kubernetes.driver.pod.name"]} <= named


def test_there_is_one_driver_without_a_disk_and_no_budget(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, VALUES, values=["replicaCount=3"])
    assert rendered.workload["spec"]["replicas"] == 1
    assert "volumeClaimTemplates" not in rendered.workload["spec"]
    assert "PodDisruptionBudget" not in rendered.kinds()


def test_the_driver_may_start_and_remove_executors_and_no_other_pod_may(spark: Rendered) -> None:
    account = spark.pod["serviceAccountName"]
    binding, role = spark.one("RoleBinding"), spark.one("Role")
    assert [each["name"] for each in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (rule,) = role["rules"]
    assert "pods" in rule["resources"]
    assert {"create", "get", "list", "watch", "delete"} <= set(rule["verbs"])
    assert spark.pod["automountServiceAccountToken"] is True
    assert executor(spark)["spec"]["automountServiceAccountToken"] is False


def test_executors_read_the_same_secrets_and_no_service_leads_to_them(spark: Rendered) -> None:
    template = executor(spark)
    mounts = {each["mountPath"] for each in template["spec"]["containers"][0]["volumeMounts"]}
    own = {each["mountPath"] for each in spark.sidecar["volumeMounts"]}
    assert "/etc/retry-sidecar/ca" in mounts
    assert own - mounts == {"/etc/retry-sidecar/executor"}
    assert {each["name"] for each in template["spec"]["volumes"]} == {
        each["name"] for each in template["spec"]["containers"][0]["volumeMounts"]
    }
    assert conf(spark)["spark.kubernetes.executor.podTemplateFile"] == "/etc/retry-sidecar/executor/pod.yaml"
    labels = template["metadata"]["labels"]
    assert labels == EXECUTOR
    for service in spark.all("Service"):
        assert not service["spec"]["selector"].items() <= labels.items()


def test_a_network_policy_lets_executors_reach_the_driver(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, VALUES, values=["networkPolicy.enabled=true"])
    policy = rendered.one("NetworkPolicy")["spec"]
    (rule,) = [each for each in policy["ingress"] if _selects(each, "from")]
    (ports,) = rule["ports"]
    properties = conf(rendered)
    for name in ("spark.driver.port", "spark.driver.blockManager.port", "spark.retrySidecar.reads.port"):
        assert ports["port"] <= int(properties[name]) <= ports["endPort"]
    assert [each for each in policy["egress"] if _selects(each, "to")]


def _selects(rule: dict[str, Any], where: str) -> bool:
    return any(each.get("podSelector", {}).get("matchLabels") == EXECUTOR for each in rule.get(where, ()))


@pytest.mark.parametrize("checkpoint", ["", "file:///var/lib/checkpoint"])
def test_a_checkpoint_that_other_pods_do_not_reach_is_refused(helm: Helm, checkpoint: str) -> None:
    with pytest.raises(RenderFailed, match=r"spark\.checkpoint"):
        helm.render(APPLICATION, VALUES, values=[f"spark.checkpoint={checkpoint}"])


def test_properties_of_the_user_replace_those_of_the_chart(helm: Helm) -> None:
    values = [r"spark.conf.spark\.driver\.port=9078", r"spark.conf.spark\.ui\.enabled=true"]
    properties = conf(helm.render(APPLICATION, VALUES, values=values))
    assert (properties["spark.driver.port"], properties["spark.ui.enabled"]) == ("9078", "true")
