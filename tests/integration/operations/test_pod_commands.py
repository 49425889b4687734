"""The runbook's commands in the environment of a pod, as the manifests without Helm give it.

The charts' pods have the same environment: tests/deploy compares both.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from deploy.manifests import KUBERNETES
from sidecar import cli
from tests.broker import read_committed
from tests.deploy.charts import Rendered, env
from tests.docs.pages import DOCS, mentions
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

REFUSED_WHILE_RUNNING = ("state give-up", "state rebuild-changelog")
"""They want all instances stopped, and find the running ones."""
NOT_ONE_COMMAND = ("api",)
"""A command that stays."""
OTHER_NAMES = {"ORIGIN": "orders", "NAME": "orders", "REASON": "missing-header"}


def environment(stage: Stage, folder: Path) -> dict[str, str]:
    """Return what a pod has, with its volumes in a folder and with the names of this test's topics."""
    rendered = Rendered((KUBERNETES / "retry-sidecar.yaml").read_text(encoding="utf-8"))
    names = {
        "bootstrap_servers": stage.bootstrap,
        "origin_topics": [stage.origin],
        "streams_app_id": stage.app_id,
        "input_topic": stage.input_topic,
        "dlq_topic": stage.dlq_topic,
        "log_format": "console",
    }
    volumes = {}
    for mount in rendered.sidecar["volumeMounts"]:
        volume = folder / mount["name"]
        volume.mkdir()
        volumes[mount["mountPath"]] = str(volume)
        if mount["name"] == "retry-sidecar-config":
            (volume / "config.yaml").write_text(yaml.safe_dump({**rendered.config(), **names}), encoding="utf-8")
    given = {"HOME": volumes["/var/lib/retry-sidecar"], "PATH": os.environ["PATH"]}
    for name, value in env(rendered.sidecar).items():
        text = value if isinstance(value, str) else "retry-sidecar-0"
        mounted = next((path for path in volumes if text.startswith(path)), "")
        given[name] = f"{volumes[mounted]}{text.removeprefix(mounted)}" if mounted else text
    # Pods have addresses of their own; here the port must be free, and its number stands in the log.
    return {**given, "KAFKA_RETRY_HTTP_HOST": "127.0.0.1", "KAFKA_RETRY_HTTP_PORT": "0"}


def commands(stage: Stage, folder: Path) -> list[list[str]]:
    """Return the words of each command of the runbook, with a value for each name that it leaves open."""
    values = {
        **OTHER_NAMES,
        "ORIGIN": stage.origin,
        "NAME": stage.origin,
        "FILE": str(folder / "retry-sidecar-config" / "config.yaml"),
        "…": str(folder / "retry-sidecar-state"),
    }
    given = []
    for mention in sorted(set(mentions(DOCS / "how-to" / "runbook.md"))):
        words = [values.get(word, word) for word in shlex.split(mention)[1:]]
        if words[0] not in NOT_ONE_COMMAND:
            # Nobody is there to be asked, as without `exec -it`.
            given.append([*words, "--yes"] if words[0] == "cancel" and "--dry-run" not in words else words)
    return given


def started(stage: Stage, sidecars: Sidecars) -> Sidecar:
    """Start the container of a pod."""
    pod = sidecars.make("pod", stage)
    pod.environment = environment(stage, sidecars.folder)
    pod.start()
    return pod


def call(words: list[str], pod: Sidecar) -> Result:
    """Run a command beside the sidecar, as `kubectl exec` does."""
    outside = {name: None for name in os.environ if name.startswith(("KAFKA_RETRY_", "XDG_"))}
    inside = {**pod.environment, "KAFKA_RETRY_HTTP_PORT": str(pod.port)}
    return CliRunner(env={**outside, **inside}).invoke(cli.main, words, input="y\n")


def test_every_command_of_the_runbook_finds_the_group_from_inside_a_pod(stage: Stage, sidecars: Sidecars) -> None:
    pod = started(stage, sidecars)
    pod.await_ready()
    for origin in (stage.origin, "nowhere-allowed"):
        sent = call(["send", "--origin", origin, "--delay", "1h"], pod)
        assert sent.exit_code == 0, sent.output
    eventually(lambda: pod.pending() == 1 and read_committed(stage.bootstrap, [stage.dlq_topic]), 60, "both are in")

    wrong = []
    for words in commands(stage, sidecars.folder):
        done = call(words, pod)
        refused = " ".join(words[:2]) in REFUSED_WHILE_RUNNING
        if done.exit_code != refused or "9092" in done.output.replace(stage.bootstrap, ""):
            wrong.append((words, done.exit_code, done.output, done.exception))
        if refused:
            assert "stop" in done.output, done.output
    assert not wrong
