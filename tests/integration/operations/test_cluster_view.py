"""Every instance, and a process that owns nothing, answers for the whole group; on a real broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.ledger import Ledger
from tests.integration.scenarios import TAKEOVER_S, owns_all, share
from tests.integration.sidecars import API, Sidecar, Sidecars, Stage
from tests.unit.engine.test_view import EMPTY
from tests.waiting import eventually

FAR = (300_000, 600_000)
TOKEN = {"API_TOKEN": "a-token-of-the-tests"}
KNOWN_S = 30.0

pytestmark = pytest.mark.broker


def start_api(sidecars: Sidecars, stage: Stage, **settings: str) -> Sidecar:
    """Start `retry-sidecar api` and return when it is ready."""
    api = sidecars.make("api", stage, **settings)
    api.start(API)
    api.await_ready()
    return api


def complete_total(each: Sidecar) -> int | None:
    """Return the total once the answer is complete."""
    group = each.group()
    return group["total"] if group and group["complete"] else None


def unknown(group: dict[str, Any]) -> list[int]:
    """Return the partitions that the answer names as not known."""
    return [each["partition"] for each in group["partitions"] if each["owner"] is None and each["state"] == "unknown"]


def forge(stage: Stage) -> None:
    """Write unsigned figures, as anyone can who may write to the topic."""
    forged = replace(EMPTY, owner="forger", pending=1_000_000, sequence=10**9)
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    producer.produce(stage.status_topic, forged.to_json(), b"p/0", 0)
    assert producer.flush(10) == 0


def test_the_group_is_known_everywhere_and_an_owner_that_dies_is_named(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    # Figures expire after 10 s, and there must be time to see that before the session of the dead one ends.
    patient = {**TOKEN, "CLIENT_SESSION_TIMEOUT_MS": "25000"}
    one, two = sidecars.make("one", stage, **patient), sidecars.make("two", stage, **patient)
    one.start()
    two.start()
    api = start_api(sidecars, stage, **TOKEN)
    assert not api.state_dir.exists()
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    ledger.send(400, FAR)
    ledger.await_ingested()

    for each in (one, two, api):
        eventually(lambda each=each: complete_total(each) == 400, KNOWN_S, f"{each.name} knows the group")  # type: ignore[misc]
    answers = [each.group() for each in (one, two, api)]
    for field in ("by_partition", "by_origin", "next_due_ms"):
        assert len({str(answer and answer[field]) for answer in answers}) == 1, answers

    forge(stage)
    lost = sorted(one.partitions())
    one.kill()

    def named() -> bool:
        group = api.group()
        if group is None:
            return False
        assert group["total"] == 400, group
        return not group["complete"] and unknown(group) == lost

    eventually(named, KNOWN_S, f"partitions {lost} are named")
    eventually(lambda: owns_all(two), TAKEOVER_S, "two has taken over")
    for each in (two, api):
        eventually(lambda each=each: complete_total(each) == 400, KNOWN_S, f"{each.name} knows all again")  # type: ignore[misc]


def test_an_instance_that_hangs_freezes_its_own_figures_only(stage: Stage, sidecars: Sidecars) -> None:
    patient = {"CLIENT_SESSION_TIMEOUT_MS": "40000"}
    ledger = Ledger(stage)
    one, two = sidecars.make("one", stage, **patient), sidecars.make("two", stage, **patient)
    one.start()
    two.start()
    api = start_api(sidecars, stage)
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    ledger.send(200, FAR)
    ledger.await_ingested()
    hung, lively = sorted(one.partitions()), sorted(two.partitions())
    one.freeze()
    ledger.send(100, FAR)
    wanted = {str(number): sum(place[0] == number for place in ledger.place.values()) for number in lively}

    def told(each: Sidecar) -> bool:
        group = each.group()
        if group is None:
            return False
        counted = {number: count for number, count in group["by_partition"].items() if number in wanted}
        return counted == wanted and unknown(group) == hung and not group["complete"]

    for each in (two, api):
        eventually(lambda each=each: told(each), KNOWN_S, f"{each.name} names {hung}, counts {lively}")  # type: ignore[misc]
    one.thaw()
    for each in (one, two, api):
        eventually(lambda each=each: complete_total(each) == 300, KNOWN_S, f"{each.name} knows all again")  # type: ignore[misc]


def test_a_rolling_restart_shows_neither_less_nor_more_than_waits(stage: Stage, sidecars: Sidecars) -> None:
    ledger = Ledger(stage)
    group = [sidecars.make(name, stage) for name in ("one", "two", "three")]
    for each in group:
        each.start()
    api = start_api(sidecars, stage)
    eventually(lambda: share(*group), TAKEOVER_S, "all have partitions")
    ledger.send(300, FAR)
    ledger.await_ingested()
    eventually(lambda: complete_total(api) == 300, KNOWN_S, "all is known")
    seen: list[tuple[str, int]] = []

    def look(asked: Iterable[Sidecar]) -> None:
        answers = [(each.name, each.group()) for each in asked]
        seen.extend((name, answer["total"]) for name, answer in answers if answer is not None)

    for leaving in group:
        others = [api, *(each for each in group if each is not leaving)]
        assert leaving.stop() == 0
        leaving.start()

        def is_back(leaving: Sidecar = leaving, others: list[Sidecar] = others) -> bool:
            look([leaving, *others])
            return leaving.ready() and share(*group)

        eventually(is_back, TAKEOVER_S, f"{leaving.name} is back")
    assert {total for _, total in seen} == {300}, [each for each in seen if each[1] != 300]
    assert {name for name, _ in seen} == {"one", "two", "three", "api"}
    eventually(lambda: complete_total(api) == 300, KNOWN_S, "all is known at the end")
