"""Kafka Connect's REST calls: what is shown of the group, what is asked of whom, and Connect's statuses and words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sidecar.api.guard import RateLimiter
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.group.view import PartitionView
from sidecar.engine.partition import Partition, State
from sidecar.errors import BrokerUnavailable
from sidecar.runtime.partitions.restarts import Restarts
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import WORKER, Client, Desk, Others, Told
from tests.unit.engine.test_view import EMPTY

NAME = WORKER.name
PATH = f"/connectors/{NAME}"
ONE, TWO = "http://10.0.0.1:8080", "http://10.0.0.2:8080"
FORWARDED = {"x-retry-sidecar-forwarded": "1"}
PAUSED = {"*": ("paused", 40)}
STOPPED = {"*": ("stopped", 40)}


def view(partition: int, owner: str = "one", **changes: Any) -> PartitionView:
    """Return a running partition of the instance `one` or `two`, or of nobody."""
    url = {"one": ONE, "two": TWO}.get(owner)
    return replace(EMPTY, partition=partition, owner=owner, url=url, next_input_offset=100 + partition, **changes)


def unowned(partition: int) -> PartitionView:
    return view(partition, "", state="unknown")


@dataclass
class Stage:
    """The group as `one` shows it, and what is asked of it."""

    source: Snapshots = field(default_factory=lambda: Snapshots([view(0), view(1, "two"), view(2)], 3))
    desk: Desk = field(default_factory=lambda: Desk(Told(Outcome.PAUSED, 3)))
    others: Others = field(default_factory=Others)
    restarted: list[bool] = field(default_factory=list)

    def client(self, **how: Any) -> Client:
        worker = replace(WORKER, others=self.others, restart=self.restarted.append)
        return Client(self.source, desk=self.desk, worker=worker, **how)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with stage.client() as made:
        yield made


@pytest.fixture(scope="module")
def running() -> Iterator[Client]:
    """A group that runs, for tests that change nothing."""
    with Stage().client() as made:
        yield made


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests in at once."""
    monkeypatch.setattr(RateLimiter, "SHARE", 1e6)


def states(client: Client) -> tuple[str, list[str]]:
    """Return the state of the connector and those of its tasks."""
    status = client.get(f"{PATH}/status").json()
    return status["connector"]["state"], [task["state"] for task in status["tasks"]]


# What is shown


def test_each_instance_is_a_task_with_its_partitions_in_the_order_of_their_ids(running: Client) -> None:
    assert running.get(f"{PATH}/tasks").json() == [
        {
            "id": {"connector": NAME, "task": number},
            "config": {
                "task.class": "io.retrysidecar.RetrySidecarTask",
                "topics": "retry",
                "partitions": partitions,
                "instance.id": owner,
            },
        }
        for number, (owner, partitions) in enumerate([("one", "0,2"), ("two", "1")])
    ]
    assert [task["worker_id"] for task in running.get(f"{PATH}/status").json()["tasks"]] == [
        "10.0.0.1:8080",
        "10.0.0.2:8080",
    ]


@pytest.mark.parametrize(
    ("views", "connector", "tasks"),
    [
        ([view(0), view(1, "two")], "RUNNING", ["RUNNING", "RUNNING"]),
        ([view(0), view(1, state="restoring")], "RUNNING", ["RESTARTING"]),
        ([view(0, state="assigned", closed_origins=PAUSED)], "PAUSED", ["RESTARTING"]),
        ([view(0), view(1, state="restoring"), view(2, state="stopped")], "RUNNING", ["FAILED"]),
        ([view(0), unowned(1)], "RUNNING", ["RUNNING", "UNASSIGNED"]),
        ([unowned(0), unowned(1)], "UNASSIGNED", ["UNASSIGNED"]),
        ([], "UNASSIGNED", []),
        ([view(0, closed_origins=PAUSED), view(1, "two", closed_origins=PAUSED)], "PAUSED", ["PAUSED", "PAUSED"]),
        ([view(0, closed_origins=PAUSED), view(1, "two")], "RUNNING", ["PAUSED", "RUNNING"]),
        ([view(0, closed_origins={"orders": ("paused", 40)})], "RUNNING", ["RUNNING"]),
        ([view(0, closed_origins=STOPPED), view(1, "two", closed_origins=STOPPED)], "STOPPED", []),
        ([view(0, state="restoring", closed_origins=STOPPED)], "STOPPED", []),
        ([replace(unowned(0), closed_origins=STOPPED)], "STOPPED", []),
        ([view(0, closed_origins=STOPPED), view(1, "two", closed_origins=PAUSED)], "PAUSED", ["PAUSED", "PAUSED"]),
        ([view(0, closed_origins=STOPPED), view(1, "two")], "RUNNING", ["PAUSED", "RUNNING"]),
    ],
)
def test_a_task_is_as_the_worst_of_its_partitions(
    stage: Stage, client: Client, views: list[PartitionView], connector: str, tasks: list[str]
) -> None:
    stage.source.shown = views
    assert states(client) == (connector, tasks)


def test_a_stopped_group_has_no_tasks_to_list_or_restart_and_keeps_its_worker(stage: Stage, client: Client) -> None:
    stage.source.shown = [view(0, closed_origins=STOPPED), view(1, "two", closed_origins=STOPPED)]
    assert client.get(PATH).json()["tasks"] == []
    assert client.get(f"{PATH}/tasks").json() == []
    assert client.get(f"{PATH}/tasks-config").json() == {}
    assert_problem(client.get(f"{PATH}/tasks/0/status"), 404, f"No status found for task {NAME}-0")
    assert_problem(client.request("POST", f"{PATH}/tasks/0/restart"), 404, f"Unknown task: {NAME}-0")
    answer = client.request("POST", f"{PATH}/restart?includeTasks=true")
    assert (answer.status_code, answer.json()["tasks"]) == (202, [])
    assert answer.json()["connector"] == {"state": "STOPPED", "worker_id": "10.0.0.1:8080"}
    assert (stage.restarted, stage.others.told) == ([], [])
    assert len(client.get(f"{PATH}/offsets").json()["offsets"]) == 2
    assert client.get("/connectors?expand=info&expand=status").json()[NAME]["status"]["tasks"] == []


def test_a_status_has_the_version_of_each_worker_that_publishes_it(stage: Stage, client: Client) -> None:
    stage.source.shown = [
        view(0, release="1.2.0"),
        view(1, "two", release="1.3.0"),
        replace(unowned(2), release="1.3.0"),
    ]
    status = client.get(f"{PATH}/status").json()
    assert status["connector"]["version"] == "1.2.0"
    assert [task.get("version") for task in status["tasks"]] == ["1.2.0", "1.3.0", None]
    older = [replace(each, release="") for each in stage.source.shown]
    stage.source.shown = older
    status = client.get(f"{PATH}/status").json()
    assert not any("version" in part for part in (status["connector"], *status["tasks"]))


def test_a_failed_task_says_why_and_no_other_has_a_trace(stage: Stage, client: Client) -> None:
    stage.source.shown = [view(0, state="stopped", reason="record 7 cannot be read"), view(1, "two", reason="held")]
    assert client.get(f"{PATH}/tasks/0/status").json() == {
        "id": 0,
        "state": "FAILED",
        "worker_id": "10.0.0.1:8080",
        "trace": "partition 0 is stopped: record 7 cannot be read",
    }
    assert "trace" not in client.get(f"{PATH}/tasks/1/status").json()


def test_why_it_is_stopped_and_how_far_it_is_read_travel_with_the_view_of_a_partition() -> None:
    stopped = view(0, state="stopped", reason="record 7 cannot be read")
    assert PartitionView.from_json(stopped.to_json()) == stopped
    older = {
        key: value for key, value in json.loads(stopped.to_json()).items() if key not in {"reason", "next_input_offset"}
    }
    assert PartitionView.from_json(json.dumps(older).encode()) == replace(stopped, reason="", next_input_offset=None)


def test_offsets_have_the_shape_of_a_sink_and_leave_out_what_is_not_known(stage: Stage, client: Client) -> None:
    stage.source.shown = [view(0), replace(unowned(1), next_input_offset=None)]
    partition = {"kafka_topic": "retry", "kafka_partition": 0}
    assert client.get(f"{PATH}/offsets").json() == {
        "offsets": [{"partition": partition, "offset": {"kafka_offset": 100}}]
    }


def test_the_configuration_is_the_settings_and_what_tools_look_for(running: Client) -> None:
    assert running.get(f"{PATH}/config").json() == {
        "max.delay": "365d",
        "name": NAME,
        "connector.class": "io.retrysidecar.RetrySidecarConnector",
        "tasks.max": "3",
        "topics": "retry",
        "kafka.topic": "retry",
    }


@pytest.mark.parametrize(
    ("query", "parts"),
    [("expand=info", {"info"}), ("expand=status&expand=info", {"info", "status"}), ("expand=plans", set())],
)
def test_a_list_can_be_expanded_and_an_unknown_part_is_ignored(running: Client, query: str, parts: set[str]) -> None:
    answer = running.get(f"/connectors?{query}&unknown=1").json()
    assert set(answer[NAME]) == parts
    for part in parts:
        path = PATH if part == "info" else f"{PATH}/{part}"
        assert answer[NAME][part] == running.get(path).json()


def test_a_browser_is_led_to_the_dashboard_and_a_program_is_not(running: Client) -> None:
    answer = running.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (302, "ui/")
    assert running.get("/", headers={"accept": "*/*"}).json()["version"] == "4.3.1"


def test_nothing_is_guessed_before_the_group_is_known(stage: Stage, client: Client) -> None:
    stage.source.reading = "the status topic has not been read to its end yet"
    for path in ("/connectors?expand=status", PATH, f"{PATH}/status", f"{PATH}/tasks", f"{PATH}/offsets"):
        assert_problem(client.get(path), 503, "try again")
    assert client.get("/connectors").json() == [NAME]


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/connectors/x", "Connector x not found"),
        ("GET", "/connectors/x/config", "Connector x not found"),
        ("GET", "/connectors/x/tasks", "Connector x not found"),
        ("GET", "/connectors/x/status", "No status found for connector x"),
        ("GET", "/connectors/x/tasks/0/status", "No status found for task x-0"),
        ("GET", f"{PATH}/tasks/2/status", f"No status found for task {NAME}-2"),
        ("PUT", "/connectors/x/pause", "Unknown connector x"),
        ("POST", "/connectors/x/restart", "Unknown connector: x"),
        ("POST", f"{PATH}/tasks/2/restart", f"Unknown task: {NAME}-2"),
        ("GET", f"{PATH}/tasks/-1/status", f"No status found for task {NAME}--1"),
        ("GET", f"{PATH}/tasks/first/status", "HTTP 404 Not Found"),
        ("GET", f"{PATH}/tasks/{2**31}/status", "HTTP 404 Not Found"),
        ("GET", f"{PATH}/tasks/1_0/status", "HTTP 404 Not Found"),
        ("POST", f"{PATH}/tasks/first/restart", "HTTP 404 Not Found"),
        ("DELETE", "/connectors/x", "Connector x not found"),
        ("GET", "/connector-plugins/org.x.Sink/config", "Unknown plugin org.x.Sink"),
        ("GET", "/admin/loggers/no.such", "Logger no.such not found."),
    ],
)
def test_what_does_not_exist_is_404_in_connects_words(running: Client, method: str, path: str, words: str) -> None:
    assert_problem(running.request(method, path), 404, words)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/connectors"),
        ("PUT", f"{PATH}/config"),
        ("PATCH", f"{PATH}/config"),
        ("DELETE", PATH),
        ("DELETE", f"{PATH}/offsets"),
        ("PATCH", f"{PATH}/offsets/"),
    ],
)
def test_it_cannot_be_made_altered_or_deleted(running: Client, method: str, path: str) -> None:
    answer = running.request(method, path)
    assert_problem(answer, 405, "retry-sidecar itself")
    assert answer.headers["allow"] == "GET, HEAD"
    assert running.request("OPTIONS", path).headers["allow"] == "GET, HEAD"


# Pause, resume, stop


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("call", "kind", "status"),
    [
        ("pause", ControlKind.PAUSE, 202),
        ("resume", ControlKind.RESUME, 202),
        ("stop", ControlKind.STOP, 204),
    ],
)
def test_a_switch_is_a_control_record_for_every_origin(
    stage: Stage, client: Client, call: str, kind: ControlKind, status: int, slash: str
) -> None:
    with capture_logs() as lines:
        answer = client.request("PUT", f"{PATH}/{call}{slash}")
    assert (answer.status_code, answer.content) == (status, b"")
    assert stage.desk.acted == [(kind, "*", None)]
    assert [(line["what"], line["target"]) for line in lines] == [(kind.value, "*")]


def test_a_switch_that_an_owner_has_not_answered_yet_is_accepted(stage: Stage, client: Client) -> None:
    stage.desk.result = Told(None, missing=(1,))
    assert client.request("PUT", f"{PATH}/pause").status_code == 202
    stage.desk.result = BrokerUnavailable("no broker answers")
    assert_problem(client.request("PUT", f"{PATH}/pause"), 503, "no broker", applied="no")


CHANGES = [
    ("PUT", f"{PATH}/pause"),
    ("PUT", f"{PATH}/resume"),
    ("PUT", f"{PATH}/stop"),
    ("PUT", f"{PATH}/topics/reset"),
    ("POST", f"{PATH}/restart?includeTasks=true"),
    ("POST", f"{PATH}/tasks/0/restart"),
    ("PUT", "/admin/loggers/some.where"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_need_the_token_as_bearer_or_as_password(stage: Stage, method: str, path: str) -> None:
    body = {"json": {"level": "INFO"}} if "loggers" in path else {}
    with stage.client(token="secret", loopback=False) as client:
        assert_problem(client.request(method, path, **body), 401, "API_TOKEN")
        assert (stage.desk.acted, stage.restarted) == ([], [])
        for way in ({"headers": {"authorization": "Bearer secret"}}, {"auth": ("anybody", "secret")}):
            assert client.request(method, path, **body, **way).is_success
    with stage.client(loopback=False) as client:
        assert_problem(client.request(method, path, **body), 403, "API_TOKEN")


# Restart


def test_a_task_of_this_process_is_restarted_here_and_another_by_its_owner(stage: Stage, client: Client) -> None:
    with capture_logs() as lines:
        for number in (0, 1):
            answer = client.request("POST", f"{PATH}/tasks/{number}/restart/")
            assert (answer.status_code, answer.content) == (204, b"")
    assert stage.restarted == [False]
    path = f"{PATH}/tasks/1/restart?instance=two&onlyFailed=false"
    assert stage.others.told == [("POST", TWO, path, None)]
    assert [(line["target"], line["instance"], line["outcome"]) for line in lines] == [
        (f"{NAME}-0", "one", "asked"),
        (f"{NAME}-1", "two", "asked"),
    ]


def test_what_another_instance_passes_on_is_done_by_the_one_that_was_meant(stage: Stage, client: Client) -> None:
    path = f"{PATH}/tasks/9/restart?onlyFailed=true&instance="
    assert_problem(client.request("POST", path + "two", headers=FORWARDED), 409, "two")
    assert stage.restarted == []
    assert client.request("POST", path + "one", headers=FORWARDED).status_code == 204
    assert stage.restarted == [True]


@pytest.mark.parametrize(
    ("answered", "status", "words"),
    [(None, 503, f"{TWO} does not answer"), (409, 409, "answers 409"), (401, 503, "answers 401")],
)
def test_a_restart_that_the_owner_does_not_take_is_no_success(
    stage: Stage, client: Client, answered: int | None, status: int, words: str
) -> None:
    stage.others.answers[TWO] = answered
    with capture_logs() as lines:
        answer = client.request("POST", f"{PATH}/tasks/1/restart")
    assert_problem(answer, status, words, **({"applied": "unknown"} if status == 503 else {}))
    assert lines[-1]["outcome"] == "failed"


def test_a_partition_without_an_owner_cannot_be_restarted_now(stage: Stage, client: Client) -> None:
    stage.source.shown = [view(0), unowned(1), unowned(2)]
    assert_problem(client.request("POST", f"{PATH}/tasks/1/restart"), 409, "1, 2", "rebalance")


def test_a_restart_with_tasks_restarts_all_and_shows_it(stage: Stage, client: Client) -> None:
    stage.source.shown = [view(0), view(1, "two"), unowned(2)]
    answer = client.request("POST", f"{PATH}/restart?includeTasks=true&onlyFailed=false")
    assert answer.status_code == 202
    assert [task["state"] for task in answer.json()["tasks"]] == ["RESTARTING", "RESTARTING", "UNASSIGNED"]
    assert stage.restarted == [False]
    assert len(stage.others.told) == 1


def test_a_restart_of_failed_tasks_leaves_the_others_alone(stage: Stage, client: Client) -> None:
    stage.source.shown = [view(0), view(1, "two", state="stopped")]
    answer = client.request("POST", f"{PATH}/restart?includeTasks=true&onlyFailed=true")
    assert [task["state"] for task in answer.json()["tasks"]] == ["RUNNING", "RESTARTING"]
    assert stage.restarted == []
    (told,) = stage.others.told
    assert told[2].endswith("onlyFailed=true")


@pytest.mark.parametrize(("query", "status"), [("", 204), ("?includeTasks=false", 204), ("?onlyFailed=true", 202)])
def test_a_restart_without_tasks_touches_none(stage: Stage, client: Client, query: str, status: int) -> None:
    answer = client.request("POST", f"{PATH}/restart{query}")
    assert answer.status_code == status
    assert bool(answer.content) == (status == 202)
    assert (stage.restarted, stage.others.told) == ([], [])


def test_a_process_that_owns_nothing_restarts_tasks_by_their_owners(stage: Stage) -> None:
    worker = replace(WORKER, instance_id="", others=stage.others, restart=stage.restarted.append)
    with Client(stage.source, worker=worker) as client:
        assert client.request("POST", f"{PATH}/restart?includeTasks=true").status_code == 202
    assert [url for _, url, _, _ in stage.others.told] == [ONE, TWO]
    assert stage.restarted == []


def test_what_any_thread_asks_for_the_loop_takes_once() -> None:
    partitions = {number: Partition(number) for number in range(3)}
    partitions[1].transition_to(State.STOPPED, "a record cannot be read")
    restarts = Restarts()
    assert restarts.take(partitions) == set()
    restarts.ask(True)
    assert restarts.take(partitions) == {1}
    assert (partitions[1].state, partitions[1].reason) == (State.ASSIGNED, "")
    restarts.ask(True)
    restarts.ask(False)
    assert restarts.take(partitions) == {0, 1, 2}
    assert restarts.take(partitions) == set()
