"""Renders charts and finds its way in what comes out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.tools import DEPLOY, run

APPLICATION: Final = DEPLOY / "helm" / "retry-sidecar"
LIBRARY: Final = DEPLOY / "helm" / "retry-sidecar-lib"
EXAMPLE: Final = DEPLOY / "helm" / "examples" / "consumer-app"
CASES: Final = tuple(sorted((APPLICATION / "ci").glob("*-values.yaml")))
RELEASE: Final = "rel"
KUBERNETES: Final = "1.33"

_NOTES: Final = """
kind: Notes
metadata: {name: notes}
text: {{ tpl (.Files.Get "files/notes.txt") . | toJson }}
"""

Manifest = dict[str, Any]


class RenderFailed(Exception):
    """Helm does not render; the text is what it says to the user."""


class Rendered:
    """The manifests of one rendering."""

    def __init__(self, text: str) -> None:
        self.manifests: list[Manifest] = [each for each in yaml.safe_load_all(text) if each]

    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.manifests}

    def all(self, kind: str) -> list[Manifest]:
        return [each for each in self.manifests if each["kind"] == kind]

    def one(self, kind: str, name_end: str = "") -> Manifest:
        """Return the only manifest of this kind whose name ends so."""
        (found,) = [each for each in self.all(kind) if each["metadata"]["name"].endswith(name_end)]
        return found

    @cached_property
    def workload(self) -> Manifest:
        """The StatefulSet or Deployment."""
        (found,) = [*self.all("StatefulSet"), *self.all("Deployment")]
        return found

    @property
    def pod(self) -> Manifest:
        """The spec of its pods."""
        spec: Manifest = self.workload["spec"]["template"]["spec"]
        return spec

    @cached_property
    def sidecar(self) -> Manifest:
        """The container of retry-sidecar, wherever it is."""
        return self._container("retry-sidecar")

    def _container(self, name: str) -> Manifest:
        (found,) = [each for each in containers(self.pod) if each["name"] == name]
        return found

    def config(self) -> Manifest:
        """Return the settings of the ConfigMap."""
        loaded: Manifest = yaml.safe_load(self.config_text())
        return loaded

    def config_text(self) -> str:
        return str(self.one("ConfigMap", "-config")["data"]["config.yaml"])

    def pods(self) -> Iterator[Manifest]:
        """Yield the spec of every pod that comes to be."""
        yield self.pod
        yield from (each["spec"] for each in self.all("Pod"))
        yield from (each["spec"]["template"]["spec"] for each in self.all("Job"))


def containers(pod: Manifest) -> list[Manifest]:
    """Return all containers of a pod's spec."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def env(container: Manifest) -> dict[str, Any]:
    """Return the environment: text, or where the value is read from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


class Helm:
    """Helm as a program.

    Args:
        program: Where it is.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self._rendered: dict[tuple[object, ...], Rendered] = {}

    def render(self, chart: Path, *files: Path, values: Sequence[str] = (), kubernetes: str = KUBERNETES) -> Rendered:
        """Return what `helm template` makes; the same question is asked once.

        Args:
            chart: Its folder.
            files: Files of values.
            values: `key=value` as `--set` takes them.
            kubernetes: The cluster's version.

        Raises:
            RenderFailed: With what Helm says.
        """
        asked = (chart, files, tuple(values), kubernetes)
        if asked not in self._rendered:
            arguments = ["template", RELEASE, str(chart), "--namespace", "shop", "--kube-version", kubernetes]
            self._rendered[asked] = Rendered(self.run(*arguments, *_given(files, values)))
        return self._rendered[asked]

    def notes(self, chart: Path, *files: Path, folder: Path) -> str:
        """Return what is said after an installation; that needs a cluster, so a manifest of a copy says it.

        Args:
            chart: Its folder.
            files: Files of values.
            folder: An empty one, for the copy.
        """
        copy = shutil.copytree(chart, folder / chart.name)
        (copy / "templates" / "NOTES.txt").rename(copy / "files" / "notes.txt")
        (copy / "templates" / "notes.yaml").write_text(_NOTES, encoding="utf-8")
        return str(self.render(copy, *files).one("Notes")["text"])

    def run(self, *arguments: str) -> str:
        """Return what Helm prints. Raises RenderFailed when it fails."""
        done = run(self._program, arguments)
        if done.returncode:
            raise RenderFailed(done.stdout + done.stderr)
        return done.stdout


def _given(files: Sequence[Path], values: Sequence[str]) -> list[str]:
    return [*(f"--values={path}" for path in files), *(f"--set={value}" for value in values)]
