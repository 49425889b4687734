"""What is there without Helm: the Kustomize base, its example, the one file, and the example for KEDA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from deploy import manifests
from deploy.manifests import CONFIG_MAP, KUBERNETES
from sidecar.api.bodies import PendingBody
from sidecar.settings import load
from tests.deploy.charts import APPLICATION, RELEASE, Helm, Manifest, Rendered, env
from tests.deploy.custom_kinds import assert_known
from tests.deploy.test_chart_matrix import assert_restricted
from tests.deploy.tools import find, run

BASE, EXAMPLE, PLAIN = KUBERNETES / "base", KUBERNETES / "example", KUBERNETES / "retry-sidecar.yaml"


def read(path: Path) -> Any:
    """Return the only document of a file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def plain() -> Rendered:
    """Return what the one file has."""
    return Rendered(PLAIN.read_text(encoding="utf-8"))


def test_the_files_are_what_the_chart_gives() -> None:
    texts = manifests.texts(find("helm", target="helm"))
    assert {path.name for path in texts if path.parent == BASE} == {path.name for path in BASE.iterdir()}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "run `python -m deploy`"


def test_nothing_of_the_chart_is_missing_and_the_pods_are_the_same(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, KUBERNETES / "values.yaml")
    own = [each for each in rendered.manifests if "helm.sh/hook" not in each["metadata"].get("annotations", {})]
    wanted = sorted((each["kind"], each["metadata"]["name"]) for each in own)
    assert sorted((each["kind"], each["metadata"]["name"]) for each in plain().manifests) == wanted
    of_this_release = json.dumps(rendered.pod).replace(f'"{RELEASE}"', '"retry-sidecar"')
    assert plain().pod == json.loads(of_this_release)
    assert plain().config() == rendered.config()


def test_kubernetes_takes_the_file_and_nothing_in_it_is_helms() -> None:
    for manifest in plain().manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
        assert "namespace" not in manifest["metadata"]
    assert "helm" not in PLAIN.read_text(encoding="utf-8").lower().replace("deploy/helm", "")
    assert_restricted(plain().pod)


def test_the_base_has_every_manifest_and_the_settings() -> None:
    kustomization = read(BASE / "kustomization.yaml")
    of_base = [
        manifest
        for name in kustomization["resources"]
        for manifest in yaml.safe_load_all((BASE / name).read_text(encoding="utf-8"))
    ]
    config_map, *others = plain().manifests
    assert of_base == others
    assert kustomization["configMapGenerator"] == [{"name": config_map["metadata"]["name"], "files": ["config.yaml"]}]
    assert (BASE / "config.yaml").read_text(encoding="utf-8") == config_map["data"]["config.yaml"]


def test_the_example_changes_what_the_base_has() -> None:
    example = read(EXAMPLE / "kustomization.yaml")
    assert [(EXAMPLE / each).resolve() for each in example["resources"]] == [BASE]
    (generated,) = example["configMapGenerator"]
    assert (generated["name"], generated["behavior"]) == (CONFIG_MAP, "replace")
    (image,) = example["images"]
    assert plain().sidecar["image"].partition(":")[0] == image["name"]
    assert plain().workload["metadata"]["name"] == example["replicas"][0]["name"]


@pytest.mark.parametrize("folder", [BASE, EXAMPLE], ids=lambda path: path.name)
def test_the_program_takes_the_settings(folder: Path) -> None:
    given = env(plain().sidecar)
    environ = {name: value if isinstance(value, str) else "pod-0" for name, value in given.items()}
    (mount,) = [each for each in plain().sidecar["volumeMounts"] if each["name"] == "retry-sidecar-config"]
    assert environ["KAFKA_RETRY_CONFIG"] == f"{mount['mountPath']}/config.yaml"
    settings = load(environ={**environ, "KAFKA_RETRY_CONFIG": str(folder / "config.yaml")})
    assert settings.warnings == ()
    assert set(read(folder / "config.yaml")) <= {name.lower() for name in settings.origins}


def built(kustomize: Path, folder: Path) -> list[Manifest]:
    """Return what Kustomize makes, with the ConfigMap's hash taken off again."""
    done = run(kustomize, ["build", str(folder)])
    assert done.returncode == 0, done.stderr
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    (config_map,) = [each for each in made if each["kind"] == "ConfigMap"]
    named = config_map["metadata"]["name"]
    assert named.startswith(f"{CONFIG_MAP}-")
    assert json.dumps(made).count(named) == 2
    loaded: list[Manifest] = json.loads(json.dumps(made).replace(named, CONFIG_MAP))
    return loaded


def test_kustomize_makes_the_one_file_of_the_base(kustomize: Path) -> None:
    def ordered(given: list[Manifest]) -> list[Manifest]:
        return sorted(given, key=lambda each: (each["kind"], each["metadata"]["name"]))

    assert ordered(built(kustomize, BASE)) == ordered(plain().manifests)


def test_kustomize_makes_the_example_a_deployment_of_its_own(kustomize: Path) -> None:
    made = Rendered(yaml.safe_dump_all(built(kustomize, EXAMPLE)))
    assert {each["metadata"]["namespace"] for each in made.manifests} == {"shop"}
    assert made.workload["spec"]["replicas"] == 3
    assert made.sidecar["image"] == "registry.example.com/retry-sidecar:0.1.0"
    assert made.config()["origin_topics"] == ["orders", "payments"]
    for manifest in made.manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_the_example_for_keda_reads_a_figure_that_there_is() -> None:
    scaled = read(KUBERNETES / "keda.yaml")
    assert_known(scaled)
    spec = scaled["spec"]
    assert spec["scaleTargetRef"]["name"] == plain().workload["metadata"]["name"]
    (trigger,) = spec["triggers"]
    service = plain().one("Service", "retry-sidecar")
    host = f"{service['metadata']['name']}.shop.svc:{service['spec']['ports'][0]['port']}"
    assert trigger["metadata"]["url"] == f"http://{host}/pending"
    assert PendingBody.model_fields[trigger["metadata"]["valueLocation"]].annotation is int
    assert 1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"] == spec["fallback"]["replicas"]
