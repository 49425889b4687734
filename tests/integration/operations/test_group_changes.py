"""What is asked of one instance and concerns all of them: a new token, a redrive, a reload; on a real broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.integration.messages import Given, Pairs, World, now_ms
from tests.integration.scenarios import TAKEOVER_S, share
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

OLD, NEW = "the-old-token-of-the-group", "the-new-token-of-the-group"
FAR_MS = 3_600_000
KNOWN_S = 60.0
LETTERS = 30
SLOW = 0.5
"""So many in a second, of 30: it runs for as long as the test looks at it."""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def two_of(stage: Stage, sidecars: Sidecars, token: str) -> tuple[Sidecar, Sidecar]:
    one, two = (sidecars.start(name, stage, API_TOKEN=token) for name in ("one", "two"))
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
    return one, two


def wait_in_all(world: World) -> list[str]:
    """Send a message to each partition; return the ids of what waits then."""
    due_ms = now_ms() + FAR_MS
    headers: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-due-ms", b"%d" % due_ms)]
    sent = world.send(*(Given(headers=headers, partition=number) for number in range(world.stage.partitions)))
    return [f"{each.partition}-{each.offset}-{due_ms}" for each in sent]


def require_within_reach(instances: Sequence[Sidecar], stage: Stage, tokens: Sequence[str]) -> None:
    """Cancel a message of each partition through each instance with each token, and find no stranger among them."""
    for asked in instances:
        for token in tokens:
            for timer in wait_in_all(World(stage, asked)):

                def gone(timer: str = timer, asked: Sidecar = asked, token: str = token) -> bool:
                    status = asked.change("DELETE", f"/pending/messages/{timer}", None, bearer(token))[0]
                    assert status in {200, 404}, (asked.name, status)  # 404 until it is read
                    return status == 200

                eventually(gone, KNOWN_S, f"{timer} is cancelled through {asked.name}")
    for asked in instances:
        eventually(lambda asked=asked: (asked.group() or {}).get("complete"), KNOWN_S, "all owners are known")  # type: ignore[misc]
        _, health = asked.get("/health")
        assert "unverified_instances" not in health["details"], health
        assert not [reason for reason in asked.get("/readyz")[1]["reasons"] if "not signed" in reason]


def test_a_token_is_rotated_one_instance_after_the_other_and_every_partition_stays_in_reach(
    stage: Stage, sidecars: Sidecars
) -> None:
    one, two = two_of(stage, sidecars, OLD)
    # By step of the runbook the tokens that are set, and those that everybody accepts during it.
    for setting, accepted in ((f"{OLD},{NEW}", [OLD]), (f"{NEW},{OLD}", [OLD, NEW]), (NEW, [NEW])):
        for instance in (one, two):
            instance.stop()
            instance.environment["KAFKA_RETRY_API_TOKEN"] = setting
            instance.start()
            eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
            require_within_reach((one, two), stage, accepted)
    assert one.call("GET", "/pending/messages", None, bearer(OLD))[0] == 401


def test_a_redrive_and_a_reload_are_the_groups_whichever_instance_is_asked(
    stage: Stage, sidecars: Sidecars, marker: bytes
) -> None:
    one, two = two_of(stage, sidecars, OLD)
    world = World(stage, one)
    headers: Pairs = [("retry-origin-topic", b"no-such-origin"), ("retry-delay-ms", b"0"), ("test", marker)]
    world.send(*(Given(headers=headers) for _ in range(LETTERS)))
    world.dead(marker, LETTERS)
    asked = {"run": "june", "per_second": SLOW}
    assert one.call("POST", "/dlq/redrives", asked, bearer(OLD))[0] == 202
    assert two.call("POST", "/dlq/redrives", asked, bearer(OLD))[0] == 200, "the run is found, and not started again"

    names = [str(each.get("/health")[1]["details"]["instance_id"]) for each in (one, two)]

    def listed() -> bool:
        status, body = two.call("GET", "/dlq/redrives", None, bearer(OLD))
        assert status == 200
        return [(each["run"], each["instance"], body["missing"]) for each in body["redrives"]] == [
            ("june", names[0], [])
        ]

    def state(of: Sidecar) -> str:
        return str(of.call("GET", "/dlq/redrives/june", None, bearer(OLD))[1]["state"])

    eventually(listed, KNOWN_S, "the other instance lists it")
    assert (state(one), state(two)) == ("running", "running")
    assert two.call("DELETE", "/dlq/redrives/june", None, bearer(OLD))[0] in {200, 202}
    eventually(lambda: state(one) == "stopped", KNOWN_S, "the other instance stopped it")
    status, body = two.call("POST", "/policies/reload", None, bearer(OLD))
    assert status == 200, body
    assert {each["instance"]: each["outcome"] for each in body["instances"]} == dict.fromkeys(names, "reloaded")
