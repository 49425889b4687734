"""Every file of values of the chart, against the schemas of several Kubernetes versions and the restricted standard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.deploy.charts import APPLICATION, CASES, EXAMPLE, LIBRARY, Helm, Manifest, Rendered, containers
from tests.deploy.custom_kinds import SPECS

NEWEST = "1.37"
VERSIONS = ("1.27", "1.29", "1.33", NEWEST)
CUSTOM_KINDS = {"PodMonitor", "ServiceMonitor", "PrometheusRule", *SPECS}
RESTRICTED_VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}

every_case = pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)


def assert_valid(rendered: Rendered, version: str) -> None:
    """Fail on a manifest that a cluster of this version would not take; unknown fields are not taken either."""
    for manifest in rendered.manifests:
        if manifest["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(manifest, version, strict=True)


def assert_restricted(pod: Manifest) -> None:
    """Fail on what the restricted pod security standard forbids, and on a root file system that can be written."""
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {name for name, value in pod.items() if value}
    for volume in pod.get("volumes", []):
        assert set(volume) - {"name"} <= RESTRICTED_VOLUMES
    of_pod = pod["securityContext"]
    for container in containers(pod):
        context: dict[str, Any] = {**of_pod, **container["securityContext"]}
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == 10001
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not context.get("privileged")


@every_case
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_what_the_chart_makes(helm: Helm, case: Path, version: str) -> None:
    assert_valid(helm.render(APPLICATION, case, kubernetes=version), version)


@every_case
def test_lint_has_nothing_to_say(helm: Helm, case: Path) -> None:
    said = helm.run("lint", str(APPLICATION), f"--values={case}", "--strict", "--kube-version", NEWEST)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@every_case
def test_every_pod_is_restricted(helm: Helm, case: Path) -> None:
    for pod in helm.render(APPLICATION, case).pods():
        assert_restricted(pod)


@every_case
def test_names_are_in_the_namespace_and_labelled(helm: Helm, case: Path) -> None:
    for manifest in helm.render(APPLICATION, case).manifests:
        if manifest["metadata"]["name"] != "rel-extra":
            assert manifest["metadata"]["namespace"] == "shop"
            assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "rel"
            assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


@every_case
def test_every_mount_has_its_volume_and_every_volume_a_mount(helm: Helm, case: Path) -> None:
    rendered = helm.render(APPLICATION, case)
    claimed = [each["metadata"]["name"] for each in rendered.workload["spec"].get("volumeClaimTemplates", [])]
    for pod in rendered.pods():
        volumes = {each["name"] for each in pod["volumes"]}
        mounts = {each["name"] for container in containers(pod) for each in container.get("volumeMounts", [])}
        assert mounts == (volumes | set(claimed) if pod is rendered.pod else volumes)


@pytest.mark.parametrize("version", ["1.29", "1.33", NEWEST])
def test_kubernetes_takes_the_example_with_the_native_sidecar(helm: Helm, version: str) -> None:
    rendered = helm.render(EXAMPLE, values=["podMonitor.enabled=true"], kubernetes=version)
    assert_valid(rendered, version)
    for pod in rendered.pods():
        assert_restricted(pod)


@pytest.mark.parametrize("chart", [LIBRARY, EXAMPLE], ids=lambda path: path.name)
def test_lint_has_nothing_to_say_of_library_and_example(helm: Helm, chart: Path) -> None:
    assert "0 chart(s) failed" in helm.run("lint", str(chart), "--strict", "--kube-version", NEWEST)
