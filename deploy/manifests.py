"""The chart without Helm: a Kustomize base and one file of YAML, made from what Helm renders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from sidecar.errors import CommandFailed

ROOT: Final = Path(__file__).resolve().parent
CHART: Final = ROOT / "helm" / "retry-sidecar"
KUBERNETES: Final = ROOT / "kubernetes"
CONFIG_MAP: Final = "retry-sidecar-config"

Manifest = dict[str, Any]

_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retry-sidecar" / "bin"
_VERSION: Final = "1.33"
_HELMS_LABELS: Final = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_HEADER: Final = "# Made from the chart by `python -m deploy`, with the values in deploy/kubernetes/values.yaml.\n"
_LONGEST_S: Final = 60


def find_helm() -> Path | None:
    """Return where Helm is: in the cache of `make helm`, else in the PATH."""
    cached = sorted(_CACHE.glob("helm-*/helm"))
    installed = shutil.which("helm")
    return cached[-1] if cached else Path(installed) if installed else None


def texts(helm: Path) -> Mapping[Path, str]:
    """Return path -> text of the files that are made from the chart.

    Raises:
        CommandFailed: Helm does not render the chart.
    """
    by_template = dict(_rendered(helm))
    settings = by_template.pop("configmap")[0]["data"]["config.yaml"]
    base = KUBERNETES / "base"
    files = {base / f"{name}.yaml": _HEADER + _dump(*manifests) for name, manifests in sorted(by_template.items())}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [path.name for path in files],
        "configMapGenerator": [{"name": CONFIG_MAP, "files": ["config.yaml"]}],
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP},
        "data": {"config.yaml": _HEADER + settings},
    }
    everything = [config_map, *(each for _, manifests in sorted(by_template.items()) for each in manifests)]
    return {
        **files,
        base / "config.yaml": _HEADER + settings,
        base / "kustomization.yaml": _HEADER + _dump(kustomization),
        KUBERNETES / "retry-sidecar.yaml": _HEADER + _dump(*everything),
    }


def _rendered(helm: Path) -> Iterator[tuple[str, list[Manifest]]]:
    """Yield each template's name with its manifests, without what is Helm's."""
    values = KUBERNETES / "values.yaml"
    command = [str(helm), "template", "retry-sidecar", str(CHART), f"--values={values}", "--no-hooks"]
    done = subprocess.run(  # noqa: S603  # Helm, on the chart of this repository
        [*command, "--kube-version", _VERSION], capture_output=True, text=True, timeout=_LONGEST_S, check=False
    )
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)} failed: {done.stderr}")
    found: dict[str, list[Manifest]] = {}
    for document in re.split(r"(?m)^---\n", done.stdout):
        source = re.search(r"# Source: retry-sidecar/templates/([\w/-]+)\.yaml", document)
        if source is not None and (manifest := yaml.safe_load(document)):
            found.setdefault(source[1], []).append(_without_helm(manifest))
    yield from found.items()


def _without_helm(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    metadata.pop("namespace", None)
    template = manifest["spec"]["template"] if manifest["kind"] == "StatefulSet" else {"metadata": {}}
    # The name of Kustomize's ConfigMap contains its hash, and so rolls the pods.
    template["metadata"].pop("annotations", None)
    for labels in (metadata["labels"], template["metadata"].get("labels", {})):
        for name in _HELMS_LABELS:
            labels.pop(name, None)
    return manifest


def _dump(*manifests: Manifest) -> str:
    return yaml.safe_dump_all(manifests, sort_keys=False, width=120)
