"""The attacks of the benchmark do what they say, against a running instance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import attackers
from bench.attackers import ATTACKS, Answers
from bench.attacks import NAMES
from bench.figures import TARGETS
from sidecar.serving.server import Server
from tests.unit.api.test_api import Snapshots
from tests.unit.api_stage import Client, Held, message
from tests.unit.engine.test_view import NOW_MS, view_of


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(attackers, "HALF_SENT", 3)
    bomb = message(NOW_MS).model_copy(update={"retry_id": "bomb"})
    with Client(Snapshots([view_of([NOW_MS])]), Held([bomb])) as client:
        server = Server(client.app, host="127.0.0.1", port=0)
        server.start()
        yield server.port
        server.stop(60.0)


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("bodies", {"nothing yet"}),
        ("yaml", {"200"}),
        ("headers", {"200"}),
        ("globs", {"200"}),
        # The server closes with bytes of the path unread: then the client may see no answer.
        ("paths", {"400", "closed"}),
        ("flood", {"200"}),
        ("unread", {"not read"}),
    ],
)
def test_each_attack_is_answered_as_a_stranger_is(port: int, name: str, answered: set[str]) -> None:
    answers = Answers()
    for _ in range(4):
        ATTACKS[name].once(port, answers)
    assert answers.total() >= 4
    assert set(answers) <= answered


def test_each_attack_has_a_figure_with_the_target_that_all_have() -> None:
    assert [name for name in TARGETS if name.startswith("attack_")] == list(NAMES)
    assert {TARGETS[name].target for name in NAMES[1:]} == {500}
