"""A rotation of API_TOKEN, step by step: in none is a command refused or an instance invisible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from starlette.types import Scope

from sidecar.api.auth import Caller, Gate
from sidecar.contract.control import CONTROL, ControlKind, render_control, sign_control
from sidecar.contract.signature import tokens_of
from sidecar.engine.group.view import FIGURE_AGE_MAX_MS
from sidecar.engine.ingest import Ingest
from sidecar.model import Record, TimerId
from sidecar.policy import Policy, PolicyConfig
from sidecar.serving.group_view import ClusterView, GroupSource
from sidecar.settings import load
from tests.clocks import NOW_MS, HandClock
from tests.unit.api.test_api import Snapshots
from tests.unit.engine.test_view import EMPTY
from tests.unit.serving.test_cluster import TOPIC, MemoryReader, cluster_of, status_read

OLD, NEW = "old-token-of-the-tests", "new-token-of-the-tests"
BOTH, TURNED = f"{OLD},{NEW}", f"{NEW},{OLD}"
STEPS = [(OLD, BOTH), (BOTH, TURNED), (TURNED, NEW)]
SIZE = 3


def fleets() -> list[list[str]]:
    """Return the tokens of the instances after each restart, step by step."""
    return [[after] * done + [before] * (SIZE - done) for before, after in STEPS for done in range(SIZE + 1)]


def asks(token: str) -> Scope:
    return {
        "type": "http",
        "method": "PUT",
        "path": "/origins/orders/pause",
        "headers": [(b"host", b"one"), (b"authorization", f"Bearer {token}".encode())],
    }


def admits(given: str, token: str) -> bool:
    gate = Gate(tokens_of(given), loopback=False)
    return gate.caller(asks(token)) is Caller.OPERATOR and gate.refusal(asks(token), Caller.OPERATOR) is None


def obeys(given: str, signer: str) -> bool:
    """Return whether an instance takes a control record for what it says."""
    ingest = Ingest(Policy(PolicyConfig()), [], {}, (), input_topic="retry", app_id="app", api_token=given)
    headers = render_control(ControlKind.CANCEL, TimerId(0, 1, 2), "c-1")
    headers = [*headers, sign_control(headers, signer, "retry", 0, NOW_MS)]
    assert headers[0][0] == CONTROL
    examined = ingest.examine(Record(0, 7, NOW_MS, None, None, headers), NOW_MS)
    return type(examined).__name__ == "Control"


def seen_by(given: str, signer: str, owner: str = "two") -> ClusterView:
    cluster = cluster_of(HandClock(), given)
    cluster.step(MemoryReader([status_read(replace(EMPTY, owner=owner), signed=signer)], caught_up=True), 0)
    return cluster


@pytest.mark.parametrize("fleet", fleets())
def test_in_no_step_of_a_rotation_is_a_command_refused_or_an_instance_invisible(fleet: list[str]) -> None:
    for asked in fleet:
        for other in fleet:
            assert admits(asked, tokens_of(other)[0]), "a call that is passed on"
            assert obeys(asked, other)
            cluster = seen_by(asked, other)
            assert (cluster.views()[0].owner, cluster.unverified(), cluster.refused) == ("two", [], 0)


@pytest.mark.parametrize("given", [BOTH, TURNED])
def test_clients_change_their_token_while_both_are_accepted(given: str) -> None:
    assert admits(given, OLD)
    assert admits(given, NEW)
    assert not admits(given, given)
    assert not admits(NEW, OLD)


def test_an_instance_with_other_tokens_is_named_and_nothing_becomes_unready() -> None:
    """As when the first step is left out."""
    cluster = seen_by(NEW, OLD)
    assert (cluster.views()[0].owner, obeys(NEW, OLD)) == ("", False)
    source = Snapshots([])
    health = GroupSource(source, cluster, "one").health()
    assert health.ready is source.health().ready
    assert "the status records of two are not signed" in health.reasons[-1]
    assert health.details["unverified_instances"] == ["two"]


def test_an_instance_is_named_only_while_it_writes() -> None:
    clock = HandClock()
    cluster = cluster_of(clock, NEW)
    cluster.step(MemoryReader([status_read(replace(EMPTY, owner="two"), signed=OLD)]), 0)
    assert cluster.unverified() == ["two"]
    clock.now_s = FIGURE_AGE_MAX_MS / 1_000
    assert cluster.unverified() == []


def test_what_an_instance_signed_before_its_own_restart_is_of_no_other() -> None:
    cluster = ClusterView(MemoryReader, HandClock(), topic=TOPIC, token=NEW, instance_id="two")
    cluster.step(MemoryReader([status_read(replace(EMPTY, owner="two"), signed=OLD)]), 0)
    assert (cluster.refused, cluster.unverified()) == (1, [])


@pytest.mark.parametrize("text", [f"{OLD}\n{NEW}\n", f"{OLD}\r\n{NEW}\r\n", f"{OLD}, {NEW}\n"])
def test_a_file_has_several_tokens_one_a_line_or_separated_by_commas(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8", newline="")
    assert tokens_of(load(environ={"KAFKA_RETRY_API_TOKEN_FILE": str(path)}).api_token) == (OLD, NEW)
