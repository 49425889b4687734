"""Four instances, one restarted after the other: what the group says of itself stays honest all the while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from tests.integration.ledger import Ledger
from tests.integration.operations.test_cluster_view import FAR, complete_total, start_api
from tests.integration.scenarios import TAKEOVER_S, share
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage
from tests.waiting import eventually

BEFORE = 400
LOT = 20
LOTS_MOST = 60
KNOWN_S = 20.0
"""Two seconds are the aim; `python -m bench counts` measures it."""

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Four(NamedTuple):
    """Four instances that share eight partitions, and a process that owns none."""

    stage: Stage
    group: list[Sidecar]
    api: Sidecar
    ledger: Ledger

    def sent(self) -> int:
        """Return how many messages the broker has."""
        return len(self.ledger.due_ms)


@pytest.fixture(scope="module")
def four(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    stage = set_stage(bootstrap, 8)
    sidecars = Sidecars(tmp_path_factory.mktemp("four"))
    try:
        group = [sidecars.make(name, stage) for name in ("one", "two", "three", "four")]
        for each in group:
            each.start()
        api = start_api(sidecars, stage)
        eventually(lambda: share(*group), TAKEOVER_S, "all have partitions")
        yield Four(stage, group, api, Ledger(stage))
    finally:
        sidecars.end()


def test_everybody_soon_knows_how_many_wait(four: Four) -> None:
    for count in (1, 7, BEFORE - 8):
        four.ledger.send(count, FAR)
        four.ledger.await_ingested()
        for each in (four.api, *four.group):
            truth = four.sent()
            eventually(
                lambda each=each, truth=truth: complete_total(each) == truth,  # type: ignore[misc]
                KNOWN_S,
                f"{each.name} says {truth}",
            )


@dataclass(slots=True)
class Watch:
    """Asks the process that owns nothing again and again, and judges each answer."""

    four: Four
    handed: int
    """Messages that are on their way, at least."""
    totals: list[int] = field(default_factory=list)
    named: set[int] = field(default_factory=set)
    """Partitions without an owner in an answer that was not complete."""
    wrong: list[str] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until told to end."""
        while not self._end.is_set():
            self.look()
            self._end.wait(0.05)

    def end(self) -> None:
        self._end.set()

    def look(self) -> None:
        """Ask once."""
        least = self.totals[-1] if self.totals else self.four.sent()
        answer = self.four.api.group()
        most = self.handed
        if answer is None:
            return
        self.totals.append(answer["total"])
        # Nothing fires and messages only come, so a figure that is honest never goes back, nor ahead of what was sent.
        if not least <= answer["total"] <= most:
            self.wrong.append(f"{answer['total']} wait, not {least} to {most}")
        ownerless = [each["partition"] for each in answer["partitions"] if each["owner"] is None]
        unsettled = [each["partition"] for each in answer["partitions"] if each["state"] != "running"]
        if answer["complete"] and ownerless:
            self.wrong.append(f"complete, though nobody has {ownerless}")
        if not answer["complete"]:
            self.named.update(ownerless)
            if not unsettled:
                self.wrong.append(f"not complete, and no partition is named: {answer['partitions']}")


def test_a_rolling_restart_shows_neither_less_nor_more_than_waits(four: Four) -> None:
    if not four.sent():
        four.ledger.send(BEFORE, FAR)
    eventually(lambda: complete_total(four.api) == four.sent(), KNOWN_S, "all is known")
    watch = Watch(four, four.sent())
    watching = threading.Thread(target=watch.run, name="watch")
    watching.start()
    try:
        for leaving in four.group:
            assert leaving.stop() == 0
            leaving.start()
            for _ in range(LOTS_MOST):
                watch.handed += LOT
                four.ledger.send(LOT, FAR)
                if leaving.ready() and leaving.partitions():
                    break
            else:
                eventually(lambda each=leaving: each.ready() and each.partitions(), TAKEOVER_S, "it is back")  # type: ignore[misc]
        eventually(lambda: share(*four.group), TAKEOVER_S, "all have partitions again")
        four.ledger.await_ingested()
        eventually(lambda: complete_total(four.api) == four.sent(), KNOWN_S, "all is known again")
    finally:
        watch.end()
        watching.join()
    watch.look()
    assert not watch.wrong, watch.wrong[:5]
    assert len(watch.totals) > 20
    assert watch.totals[-1] == four.sent() > BEFORE


def test_when_all_have_gone_nothing_is_forgotten_and_every_partition_is_named(four: Four) -> None:
    if not four.sent():
        four.ledger.send(BEFORE, FAR)
        four.ledger.await_ingested()
    eventually(lambda: complete_total(four.api) == four.sent(), KNOWN_S, "all is known")
    watch = Watch(four, four.sent())
    for each in four.group:
        assert each.stop() == 0
        watch.look()

    def told() -> bool:
        watch.look()
        return watch.named == set(range(four.stage.partitions))

    eventually(told, KNOWN_S, "every partition is named")
    assert set(watch.totals) == {four.sent()}
    assert not watch.wrong, watch.wrong[:5]
