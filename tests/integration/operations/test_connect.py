"""Kafka Connect's calls at a process that owns nothing change what two others do; on a real broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.broker import read_committed
from tests.integration.messages import Given, marked, native, now_ms, send
from tests.integration.scenarios import TAKEOVER_S, owns_all, share, two_and_an_onlooker
from tests.integration.sidecars import Sidecar, Stage
from tests.waiting import eventually

TOKEN = "a-token-of-the-tests"
WAIT_S = 40.0

pytestmark = pytest.mark.broker


class Group(NamedTuple):
    """Two instances, and a process that owns nothing."""

    stage: Stage
    one: Sidecar
    two: Sidecar
    api: Sidecar

    @property
    def connector(self) -> str:
        return f"/connectors/{self.stage.app_id}"

    def states(self, asked: Sidecar) -> tuple[str, list[str]]:
        """Return the state of the connector and those of its tasks."""
        _, status = call(asked, "GET", f"{self.connector}/status")
        return status["connector"]["state"], [task["state"] for task in status["tasks"]]

    def await_states(self, state: str) -> None:
        """Wait until every process that runs shows a state of the connector and of two tasks, and none when stopped."""
        wanted = (state, [] if state == "STOPPED" else [state] * 2)
        for each in self:
            if isinstance(each, Sidecar) and each.running:
                eventually(lambda each=each: self.states(each) == wanted, WAIT_S, f"{each.name}: {state}")  # type: ignore[misc]


def call(sidecar: Sidecar, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return status and body of a call with the token as a password, as Connect's tools bring it."""
    login = base64.b64encode(f"console:{TOKEN}".encode()).decode()
    return sidecar.call(method, path, body, {"authorization": f"Basic {login}", "accept": "application/json"})


def change(sidecar: Sidecar, method: str, path: str) -> int:
    """Return the status of a change, with its outcome however late it comes."""
    return sidecar.change(method, path, None, {"authorization": f"Bearer {TOKEN}"})[0]


@pytest.fixture(scope="module")
def group(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with two_and_an_onlooker(bootstrap, tmp_path_factory.mktemp("connect"), TOKEN) as members:
        made = Group(*members)
        made.await_states("RUNNING")
        yield made


def test_the_whole_group_is_paused_fires_nothing_and_fires_all_once_it_is_resumed(group: Group) -> None:
    stage, origin = group.stage, group.stage.origin
    assert call(group.api, "PUT", f"{group.connector}/pause") == (202, None)
    messages = [Given(b"x", None, native(stage, b"paused", 500), partition) for partition in range(4)]
    sent = send(stage.bootstrap, stage.input_topic, *messages)
    group.await_states("PAUSED")

    def flags() -> int:
        _, answer = call(group.api, "GET", "/origins")
        return sum(each["deferred"] for each in answer["origins"] if each["origin"] == origin)

    eventually(lambda: flags() == 4, WAIT_S, "all are due and put off")
    due_ms = now_ms() + 3_600_000
    headers = [*native(stage, b"fired", 0)[:1], ("retry-due-ms", b"%d" % due_ms), ("test", b"fired")]
    (later,) = send(stage.bootstrap, stage.input_topic, Given(b"x", None, headers, 1))
    fire = f"/pending/messages/1-{later.offset}-{due_ms}/fire"
    eventually(lambda: call(group.api, "POST", fire)[0] == 409, WAIT_S, "a fire is refused")
    assert read_committed(stage.bootstrap, [origin]) == []
    assert call(group.api, "PUT", f"{group.connector}/resume") == (202, None)
    assert change(group.api, "POST", fire) == 200
    records = read_committed(
        stage.bootstrap, [origin], WAIT_S, until=lambda seen: len(marked(seen, b"paused")) == len(sent)
    )
    assert len(marked(records, b"paused")) == len(sent)
    assert len(marked(records, b"fired")) == 1
    group.await_states("RUNNING")


@pytest.mark.parametrize("number", [0, 1])
def test_a_restarted_task_is_restored_by_its_owner_and_no_other_is(group: Group, number: int) -> None:
    _, tasks = call(group.api, "GET", f"{group.connector}/tasks")
    partitions = [int(each) for each in tasks[number]["config"]["partitions"].split(",")]
    owner, other = (group.one, group.two) if partitions == sorted(group.one.partitions()) else (group.two, group.one)
    before = {each.name: each.log.count("partition_restored") for each in (owner, other)}
    assert call(group.api, "POST", f"{group.connector}/tasks/{number}/restart") == (204, None)
    wanted = before[owner.name] + len(partitions)
    eventually(lambda: owner.log.count("partition_restored") == wanted, WAIT_S, "its partitions are restored")
    group.await_states("RUNNING")
    assert other.log.count("partition_restored") == before[other.name]
    marker = b"restarted-%d" % number
    given = [Given(b"x", None, native(group.stage, marker, 50), partition) for partition in range(4)]
    send(group.stage.bootstrap, group.stage.input_topic, *given)
    records = read_committed(
        group.stage.bootstrap, [group.stage.origin], WAIT_S, until=lambda seen: len(marked(seen, marker)) == 4
    )
    assert len(marked(records, marker)) == 4
    assert f"target={group.stage.app_id}-{number}" in group.api.log


def test_a_level_is_set_at_every_instance_and_counts_from_the_next_line_on(group: Group) -> None:
    path = "/admin/loggers/sidecar.runtime.partitions.restarts"
    level = {"level": "ERROR"}
    # It is an error that names them when others do not answer in time.
    eventually(lambda: call(group.one, "PUT", f"{path}?scope=cluster", level) == (204, None), WAIT_S, "all have it")
    for each in (group.one, group.two):
        assert call(each, "GET", path)[1]["level"] == "ERROR"
    before = group.two.log.count("partitions_restarted")
    restored = group.two.log.count("partition_restored")
    assert call(group.two, "POST", f"{group.connector}/restart?includeTasks=true")[0] == 202
    eventually(lambda: group.two.log.count("partition_restored") > restored, WAIT_S, "it was restarted")
    assert group.two.log.count("partitions_restarted") == before
    group.await_states("RUNNING")


def test_offsets_and_settings_are_those_of_the_group(group: Group) -> None:
    _, found = call(group.api, "GET", f"{group.connector}/offsets")
    shown = {each["partition"]["kafka_partition"]: each["offset"]["kafka_offset"] for each in found["offsets"]}
    assert shown.keys() == {0, 1, 2, 3}
    assert all(offset >= 3 for offset in shown.values()), "a message and two switches were read of each"
    _, config = call(group.api, "GET", f"{group.connector}/config")
    assert config["topics"] == group.stage.input_topic
    assert TOKEN not in json.dumps(config)


def test_a_stop_lasts_over_a_restart_and_a_rebalance_and_a_pause_or_a_resume_ends_it(group: Group) -> None:
    stage, origin = group.stage, group.stage.origin
    assert call(group.api, "PUT", f"{group.connector}/stop") == (204, None)
    group.await_states("STOPPED")
    given = [Given(b"x", None, native(stage, b"stopped", 50), partition) for partition in range(4)]
    sent = send(stage.bootstrap, stage.input_topic, *given)
    assert group.one.stop() == 0
    eventually(lambda: owns_all(group.two), TAKEOVER_S, "two has all of them")
    group.await_states("STOPPED")
    group.one.start()
    eventually(lambda: share(group.one, group.two), TAKEOVER_S, "both have partitions")
    group.await_states("STOPPED")
    eventually(lambda: group.two.overdue() >= len(sent), WAIT_S, "all are due")
    assert marked(read_committed(stage.bootstrap, [origin]), b"stopped") == []
    assert call(group.api, "GET", f"{group.connector}/tasks") == (200, [])

    assert call(group.two, "PUT", f"{group.connector}/pause") == (202, None)
    group.await_states("PAUSED")
    assert call(group.one, "PUT", f"{group.connector}/stop") == (204, None)
    group.await_states("STOPPED")
    assert call(group.api, "PUT", f"{group.connector}/resume") == (202, None)
    group.await_states("RUNNING")
    records = read_committed(
        stage.bootstrap, [origin], WAIT_S, until=lambda seen: len(marked(seen, b"stopped")) == len(sent)
    )
    assert len(marked(records, b"stopped")) == len(sent)
