"""The calls that Kafka Connect's tools make, one after the other as they make them, read as strictly as they read.

What each tool insists on is what its own code does with the answer: types that it decodes into, enumerations without a
value for anything else, fields that it uses without looking whether they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from sidecar.api.connect.connector import CONNECTOR_CLASS
from sidecar.api.guard import RateLimiter
from sidecar.contract.control import ControlKind, Outcome
from tests.unit.api.test_api import Snapshots
from tests.unit.api.test_api_connect import unowned, view
from tests.unit.api_stage import WORKER, Client, Desk, Told

NAME = WORKER.name
AT = f"/connectors/{NAME}"
TASK_STATES = {"RUNNING", "FAILED", "PAUSED", "RESTARTING", "UNASSIGNED"}
CONNECTOR_STATES = {*TASK_STATES, "STOPPED"}
JSON = {"accept": "application/json"}

GROUPS = {
    "running": [view(0), view(1, "two"), view(2)],
    "paused": [view(number, closed_origins={"*": ("paused", 40)}) for number in range(3)],
    "stopped": [view(number, closed_origins={"*": ("stopped", 40)}) for number in range(3)],
    "failed": [view(0, state="stopped", reason="record 7 cannot be read"), view(1, "two", state="restoring")],
    "without owners": [unowned(0), view(1)],
    "empty": [],
}


class Call(NamedTuple):
    """A call of a tool and what it makes of the answer."""

    method: str
    path: str
    reads: Callable[[Any], None]
    status: int = 200


def text_map(value: Any) -> None:
    """Go's map[string]string and Java's Map<String, String>."""
    assert isinstance(value, dict)
    assert all(isinstance(each, str) for pair in value.items() for each in pair)


def nothing(_: Any) -> None:
    """The tool looks at the status only."""


def is_in(path: str, check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a check of a part of the answer."""

    def reads(value: Any) -> None:
        for name in path.split("/"):
            value = value[name]
        check(value)

    return reads


# kcctl: jackson, Integer.parseInt of the first two parts of the version


def kcctl_version(info: Any) -> None:
    major, minor = info["version"].split(".")[:2]
    assert (int(major), int(minor)) >= (3, 7), "below, commands are switched off"
    assert isinstance(info["commit"], str)
    assert isinstance(info["kafka_cluster_id"], str)


def kcctl_statuses(expanded: Any) -> None:
    for each in expanded.values():
        kcctl_status(each["status"])


def kcctl_status(status: Any) -> None:
    assert set(status) == {"name", "connector", "tasks", "type"}
    assert status["connector"]["state"] in CONNECTOR_STATES
    for task in status["tasks"]:
        assert isinstance(task["id"], int)
        assert isinstance(task["worker_id"], str)
        if task["state"] == "FAILED":
            assert task["trace"].splitlines(), "its first lines are shown without a look whether it is there"


def kcctl_topics(topics: Any) -> None:
    (first, *_) = topics.values()
    assert first["topics"]


def kcctl_loggers(loggers: Any) -> None:
    assert all(isinstance(each["level"], str) for each in loggers.values())
    assert "root" in loggers


def kcctl_offsets(found: Any) -> None:
    for each in found["offsets"]:
        assert set(each["partition"]) == {"kafka_topic", "kafka_partition"}
        assert isinstance(each["offset"]["kafka_offset"], int)


def kcctl_plugins(plugins: Any) -> None:
    assert [each["class"] for each in plugins] == [CONNECTOR_CLASS]


def kcctl_keys(keys: Any) -> None:
    assert [key["order_in_group"] for key in keys] == list(range(1, len(keys) + 1))
    assert all(isinstance(key[name], str) for key in keys for name in ("name", "type", "importance", "documentation"))


KCCTL = [
    Call("GET", "/", kcctl_version),
    Call("GET", "/connectors?expand=status", kcctl_statuses),
    Call("GET", "/connectors/", lambda names: text_map(dict.fromkeys(names, ""))),
    Call("GET", AT, is_in("config", text_map)),
    Call("GET", f"{AT}/status", kcctl_status),
    Call("GET", f"{AT}/config", text_map),
    Call("GET", f"{AT}/topics", kcctl_topics),
    Call("GET", f"{AT}/offsets", kcctl_offsets),
    Call("GET", "/connector-plugins?connectorsOnly=false", kcctl_plugins),
    Call("GET", f"/connector-plugins/{CONNECTOR_CLASS}/config", kcctl_keys),
    Call("GET", "/admin/loggers", kcctl_loggers),
    Call("PUT", f"{AT}/pause", nothing, 202),
    Call("PUT", f"{AT}/resume", nothing, 202),
    Call("PUT", f"{AT}/stop", nothing, 204),
    Call("POST", f"{AT}/restart?includeTasks=false&onlyFailed=false", nothing, 204),
]


# Kafbat UI: enumerations of its OpenAPI client, nulls are errors of its reactive streams


def kafbat_expanded(expanded: Any) -> None:
    for each in expanded.values():
        assert each["info"]["type"] in {"source", "sink"}
        kafbat_status(each["status"])
        known = {task["task"] for task in each["info"]["tasks"]}
        assert {task["id"] for task in each["status"]["tasks"]} <= known


def kafbat_status(status: Any) -> None:
    assert status["connector"]["state"] in CONNECTOR_STATES
    assert isinstance(status["connector"]["worker_id"], str)
    assert {task["state"] for task in status["tasks"]} <= TASK_STATES


def kafbat_tasks(tasks: Any) -> None:
    assert [each["id"] for each in tasks] == [{"connector": NAME, "task": at} for at in range(len(tasks))]
    for each in tasks:
        text_map(each["config"])


def kafbat_validated(infos: Any) -> None:
    assert infos["error_count"] == 0
    for each in infos["configs"]:
        assert each["definition"]["type"] in {
            "BOOLEAN", "CLASS", "DOUBLE", "INT", "LIST", "LONG", "PASSWORD", "SHORT", "STRING",
        }  # fmt: skip
        assert each["definition"]["importance"] in {"LOW", "MEDIUM", "HIGH"}
        assert isinstance(each["value"]["errors"], list)


KAFBAT = [
    Call("GET", "/", is_in("version", nothing)),
    Call("GET", "/connectors?expand=info&expand=status", kafbat_expanded),
    Call("GET", f"{AT}/topics", is_in(f"{NAME}/topics", nothing)),
    Call("GET", AT, lambda info: text_map(info["config"])),
    Call("GET", f"{AT}/status", kafbat_status),
    Call("GET", f"{AT}/tasks", kafbat_tasks),
    Call("GET", f"{AT}/config", text_map),
    Call("GET", "/connector-plugins", lambda plugins: text_map({each["class"]: each["type"] for each in plugins})),
    Call("PUT", "/connector-plugins/RetrySidecarConnector/config/validate", kafbat_validated),
    Call("POST", f"{AT}/restart?includeTasks=false&onlyFailed=false", nothing, 204),
    Call("PUT", f"{AT}/pause", nothing, 202),
    Call("PUT", f"{AT}/resume", nothing, 202),
]


# AKHQ: its Java client maps into objects; the definition page looks for the connector's class among the plugins


def akhq_plugins(plugins: Any) -> None:
    (found,) = [each for each in plugins if each["class"] == CONNECTOR_CLASS]
    assert set(found) == {"class", "type", "version"}


def akhq_expanded(expanded: Any) -> None:
    for each in expanded.values():
        text_map(each["info"]["config"])
        assert each["info"]["config"]["connector.class"]
        assert len(each["status"]["tasks"]) == len(each["info"]["tasks"])


def akhq_tasks(tasks: Any) -> None:
    assert all(isinstance(task["worker_id"], str) for task in tasks)


AKHQ = [
    Call("GET", "/connectors?expand=info&expand=status", akhq_expanded),
    Call("GET", AT, is_in("config", text_map)),
    Call("GET", f"{AT}/status", is_in("tasks", akhq_tasks)),
    Call("GET", "/connector-plugins", akhq_plugins),
    Call("PUT", f"{AT}/pause", nothing, 202),
    Call("PUT", f"{AT}/resume", nothing, 202),
    Call("POST", f"{AT}/restart", nothing, 204),
]


# Redpanda Console: Go structs, and map[string]string for every configuration


def redpanda_expanded(expanded: Any) -> None:
    for each in expanded.values():
        config = each["info"]["config"]
        text_map(config)
        assert config["connector.class"], "shown as its class"
        assert config["kafka.topic"] == "retry", "shown as its topic; without it `unknown`"
        for task in each["status"]["tasks"]:
            assert {"id", "state", "worker_id"} <= set(task)


REDPANDA = [
    Call("GET", "/", is_in("version", nothing)),
    Call("GET", "/connectors?expand=info&expand=status", redpanda_expanded),
    Call("GET", "/connector-plugins", akhq_plugins),
    Call("GET", AT, is_in("config", text_map)),
    Call("GET", f"{AT}/status", is_in("connector/state", nothing)),
    Call("GET", f"{AT}/topics", is_in(f"{NAME}/topics", nothing)),
    Call("PUT", f"{AT}/topics/reset", nothing, 202),
    Call("PUT", f"{AT}/pause", nothing, 202),
    Call("PUT", f"{AT}/resume", nothing, 202),
    Call("PUT", f"{AT}/stop", nothing, 204),
]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests in at once."""
    monkeypatch.setattr(RateLimiter, "SHARE", 1e6)


@pytest.fixture(scope="module")
def running() -> Iterator[Client]:
    with Client(Snapshots(GROUPS["running"], 3)) as made:
        yield made


def made(client: Client, call: Call) -> httpx.Response:
    """Make a call as the tools do: JSON in and out, and a body only where it says something."""
    body = {"json": {"connector.class": "RetrySidecarConnector"}} if call.path.endswith("validate") else {}
    return client.request(call.method, call.path, headers=JSON, **body)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "calls", [KCCTL, KAFBAT, AKHQ, REDPANDA], ids=["kcctl", "Kafbat UI", "AKHQ", "Redpanda Console"]
)
def test_a_tool_can_read_every_answer_in_every_state_of_the_group(calls: list[Call], group: str) -> None:
    desk = Desk(Told(Outcome.PAUSED))
    with Client(Snapshots(GROUPS[group], 3), desk=desk) as client:
        for call in calls:
            answer = made(client, call)
            assert answer.status_code == call.status, call
            if answer.status_code == 200:
                call.reads(answer.json())
            else:
                assert answer.content == b"", call
    switches = [call for call in calls if call.path.rpartition("/")[2] in {"pause", "resume", "stop"}]
    assert len(desk.acted) == len(switches)
    assert {target for _, target, _ in desk.acted} == {"*"}
    assert desk.acted[0][0] is ControlKind.PAUSE


@pytest.mark.parametrize("group", GROUPS)
def test_every_task_that_is_listed_can_be_asked_for(group: str) -> None:
    """Kafbat UI does so one after the other, and AKHQ restarts them."""
    with Client(Snapshots(GROUPS[group], 3)) as client:
        for task in client.get(f"{AT}/tasks").json():
            number = task["id"]["task"]
            status = client.get(f"{AT}/tasks/{number}/status").json()
            assert status["id"] == number
            assert status["state"] in TASK_STATES
            answer = client.request("POST", f"{AT}/tasks/{number}/restart")
            assert answer.status_code == (409 if status["state"] == "UNASSIGNED" else 204)


def test_every_tool_sees_the_stop_that_it_waits_for(running: Client) -> None:
    """All poll until the connector is STOPPED and, to alter offsets, until it has no tasks."""
    assert running.get(f"{AT}/status").json()["connector"]["state"] == "RUNNING"
    with Client(Snapshots(GROUPS["stopped"], 3)) as client:
        status = client.get(f"{AT}/status").json()
        assert (status["connector"]["state"], status["tasks"]) == ("STOPPED", [])
        assert client.get(AT).json()["tasks"] == []


def test_redpanda_console_shows_a_running_group_as_healthy(running: Client) -> None:
    """It asks for a running connector with at least one task, all of them running."""
    status = running.get(f"{AT}/status").json()
    assert status["connector"]["state"] == "RUNNING"
    assert [task["state"] for task in status["tasks"]] == ["RUNNING", "RUNNING"]


@pytest.mark.parametrize("path", sorted({call.path.partition("?")[0] for call in KCCTL if call.method == "GET"}))
def test_both_spellings_answer_alike_without_a_redirect(running: Client, path: str) -> None:
    plain = path.rstrip("/")
    answers = [running.get(spelt, headers=JSON) for spelt in (plain or "/", f"{plain}/")]
    assert [each.status_code for each in answers] == [200, 200]
    assert answers[0].content == answers[1].content
