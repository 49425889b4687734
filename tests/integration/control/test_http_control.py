"""Messages are listed, shown and changed by HTTP from an instance that does not own them; on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.broker import read_committed
from tests.integration.messages import Given, marked, now_ms, send
from tests.integration.scenarios import two_and_an_onlooker
from tests.integration.sidecars import Sidecar, Stage
from tests.waiting import eventually

TOKEN = "a-token-of-the-tests"
FAR_MS = 3_600_000
ANSWERED_S = 40.0

pytestmark = pytest.mark.broker


class Group(NamedTuple):
    """Two instances, and a process that owns nothing."""

    stage: Stage
    one: Sidecar
    two: Sidecar
    api: Sidecar

    def put(self, partition: int, marker: bytes, *, retry_id: bytes | None = None) -> str:
        """Send a message that is due in an hour and return its timer id once all know that it waits."""
        due_ms = now_ms() + FAR_MS
        headers: list[tuple[str, bytes | None]] = [
            ("retry-origin-topic", self.stage.origin.encode()),
            ("retry-due-ms", b"%d" % due_ms),
            ("test", marker),
        ]
        if retry_id is not None:
            headers.append(("retry-id", retry_id))
        given = Given(b"value", b"key", headers, partition)
        (sent,) = send(self.stage.bootstrap, self.stage.input_topic, given)
        timer = f"{partition}-{sent.offset}-{due_ms}"
        eventually(lambda: call(self.api, "GET", f"/pending/messages/{timer}")[0] == 200, ANSWERED_S, f"{timer} waits")
        return timer

    def askers(self, partition: int) -> list[Sidecar]:
        """Return the processes that do not own a partition."""
        return [each for each in (self.one, self.two, self.api) if partition not in each.partitions()]


def call(sidecar: Sidecar, method: str, path: str, body: object = None, token: str | None = TOKEN) -> tuple[int, Any]:
    """Return status and body."""
    return sidecar.call(method, path, body, {} if token is None else {"authorization": f"Bearer {token}"})


def change(sidecar: Sidecar, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return status and body, with the outcome however late it comes."""
    return sidecar.change(method, path, body, {"authorization": f"Bearer {TOKEN}"})


def look(sidecar: Sidecar, path: str) -> tuple[int, Any]:
    """Return status and body of a GET, and ask again as long as an owner does not answer in time."""

    def told() -> tuple[int, Any] | None:
        status, body = call(sidecar, "GET", path)
        late = status in {429, 503} or (status == 200 and body.get("complete") is False)
        return None if late else (status, body)

    found = eventually(told, ANSWERED_S, f"{path} is answered")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def group(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with two_and_an_onlooker(bootstrap, tmp_path_factory.mktemp("http-control"), TOKEN) as members:
        yield Group(*members)


def test_all_that_waits_is_listed_by_everyone_page_by_page(group: Group) -> None:
    timers = [group.put(partition, b"listed") for partition in (3, 0, 2, 1, 0)]
    for each in (group.one, group.two, group.api):
        found: list[str] = []
        cursor = ""
        while True:
            status, page = look(each, f"/pending/messages?limit=2{cursor}")
            assert (status, page["complete"], page["missing"]) == (200, True, [])
            found += [message["id"] for message in page["messages"]]
            if page["cursor"] is None:
                break
            cursor = f"&cursor={page['cursor']}"
        assert [timer for timer in found if timer in timers] == timers
        assert len(found) == len(set(found))
    for timer in timers:
        assert change(group.api, "DELETE", f"/pending/messages/{timer}")[0] == 200


@pytest.mark.parametrize("partition", [0, 1, 2, 3])
def test_who_does_not_own_a_message_shows_and_cancels_it(group: Group, partition: int) -> None:
    for asker in group.askers(partition):
        timer = group.put(partition, b"cancelled")
        path = f"/pending/messages/{timer}"
        status, shown = look(asker, f"{path}?payload=true")
        assert (status, shown["id"], shown["key"], shown["value"]) == (200, timer, "a2V5", "dmFsdWU=")
        assert {"name": "test", "value": "cancelled"} in shown["headers"]
        assert call(asker, "GET", f"{path}?payload=true", token=None)[0] == 401
        assert call(asker, "DELETE", path, token=None)[0] == 401
        status, said = change(asker, "DELETE", path)
        assert (status, said["result"], said["count"]) == (200, "cancelled", 1)
        assert look(asker, f"/control/{said['control_id']}") == (200, said)
        status, said = change(asker, "DELETE", path)
        assert (status, said["result"]) == (404, "not-pending")
        eventually(lambda path=path, asker=asker: look(asker, path)[0] == 404, ANSWERED_S, "it is gone")  # type: ignore[misc]
        assert f"target={timer}" in asker.log
        assert TOKEN not in asker.log


def test_the_id_of_one_change_is_none_of_another_one(group: Group) -> None:
    """The answer is not the outcome of the first one."""
    first, second = (group.put(1, b"once") for _ in range(2))
    asker, same = group.askers(1)[0], "?control_id=used-once"
    assert change(asker, "DELETE", f"/pending/messages/{first}{same}")[0] == 200
    assert change(asker, "DELETE", f"/pending/messages/{first}{same}")[1]["result"] == "cancelled"
    for method, path in (("DELETE", f"/pending/messages/{second}"), ("POST", f"/pending/messages/{first}/fire")):
        status, said = change(asker, method, f"{path}{same}")
        assert (status, set(said)) == (400, {"error_code", "message"})
        assert "use an id once" in said["message"]


def test_what_is_rescheduled_shows_its_new_time_and_keeps_its_id(group: Group) -> None:
    timer = group.put(1, b"moved")
    path = f"/pending/messages/{timer}"
    due_ms = now_ms() + 2 * FAR_MS
    for asker in group.askers(1):
        status, said = change(asker, "PATCH", path, {"due_ms": due_ms})
        assert (status, said["result"]) == (200, "rescheduled")
        eventually(lambda at=due_ms: look(group.api, path)[1]["due_ms"] == at, ANSWERED_S, "it has its new time")  # type: ignore[misc]
        due_ms += 1_000
    status, said = call(group.api, "PATCH", path, {"due_ms": now_ms() + 10**15})
    assert (status, set(said)) == (400, {"error_code", "message"})
    assert change(group.api, "DELETE", path)[0] == 200


def test_fire_brings_a_message_back_now_unless_its_origin_is_paused(group: Group) -> None:
    timer = group.put(2, b"fired")
    path = f"/pending/messages/{timer}/fire"
    origin = group.stage.origin
    asker = group.askers(2)[0]
    status, said = change(asker, "PUT", f"/origins/{origin}/pause")
    assert (status, said["result"]) == (200, "paused")

    def state(each: Sidecar) -> list[str]:
        _, answer = look(each, "/origins")
        return [row["state"] for row in answer["origins"] if row["origin"] == origin]

    for each in (group.one, group.two, group.api):
        eventually(lambda each=each: state(each) == ["paused"], ANSWERED_S, f"{each.name} shows the pause")  # type: ignore[misc]
    status, said = change(asker, "POST", path)
    assert (status, said["result"]) == (409, "origin-paused")
    assert change(group.api, "PUT", f"/origins/{origin}/resume")[1]["result"] == "resumed"
    status, said = change(asker, "POST", path)
    assert (status, said["result"], said["count"]) == (200, "fired", 1)
    records = read_committed(group.stage.bootstrap, [origin], 60, until=lambda seen: bool(marked(seen, b"fired")))
    assert len(marked(records, b"fired")) == 1


def test_a_retry_id_means_all_its_messages_in_all_partitions(group: Group) -> None:
    timers = {group.put(partition, b"named", retry_id=b"order/4711") for partition in (0, 3)}
    for each in (group.one, group.two, group.api):
        status, shown = look(each, "/pending/messages/id:order%2F4711")
        assert (status, {message["id"] for message in shown["messages"]}) == (200, timers)
        assert shown["complete"] is True
    status, said = change(group.api, "DELETE", "/pending/messages/id:order%2F4711")
    assert (status, said["result"], said["count"]) == (200, "cancelled", 2)
    assert change(group.two, "DELETE", "/pending/messages/id:order%2F4711")[0] == 404


def test_while_an_owner_hangs_its_partitions_are_missing_and_a_change_is_under_way(group: Group) -> None:
    lost = sorted(group.one.partitions())
    timer = group.put(lost[0], b"waits for its owner")
    path = f"/pending/messages/{timer}"
    group.one.freeze()
    try:
        status, page = call(group.two, "GET", "/pending/messages")
        assert (status, page["complete"], page["missing"]) == (200, False, lost)
        assert call(group.two, "GET", path)[0] == 503
        status, said = call(group.api, "DELETE", path)
        assert (status, said["result"], said["missing"]) == (202, None, [lost[0]])
    finally:
        group.one.thaw()
    found = eventually(
        lambda: (told := call(group.two, "GET", f"/control/{said['control_id']}"))[0] == 200 and told, 40, "told"
    )
    assert found
    assert found[1]["result"] == "cancelled"
