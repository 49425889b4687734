"""The API reads pending messages from the store in order, a bounded part at a time."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.api.messages.listing import MessageBody, Page, Wanted
from sidecar.contract.control import ControlKind
from sidecar.engine import selection
from sidecar.engine.ports import Mutations
from sidecar.engine.rows import decode_meta, encode_meta
from sidecar.errors import StoreFailed
from sidecar.model import Headers, TimerId
from sidecar.serving import local_messages as entries
from sidecar.serving.local_messages import LocalEntries
from sidecar.store.rocks import RocksStore
from tests.simulation.memory_store import MemoryStore
from tests.simulation.stage import NOW, Stage
from tests.unit.api.test_api import Snapshots
from tests.unit.engine.test_view import EMPTY

OWN = replace(EMPTY, owner="me")


IDS = ("cluster", "changelog-id")


def local(*stages: Stage) -> LocalEntries:
    """Return the entries of these partitions in one store."""
    store = MemoryStore()
    for each in stages:
        store.rows.update(each.store.rows)
    views = [replace(OWN, partition=each.partition.number) for each in stages]
    return LocalEntries(lambda: store, Snapshots(views, len(views)), "me")


def pages(held: LocalEntries, wanted: Wanted, partitions: list[int]) -> list[MessageBody]:
    """Return the messages of all pages."""
    found: list[MessageBody] = []
    while True:
        page = held.page(partitions, wanted)
        assert len(page.messages) <= wanted.limit
        found += page.messages
        if page.reached is None:
            return found
        assert wanted.after is None or page.reached > wanted.after
        wanted = replace(wanted, after=page.reached)


def three_partitions() -> list[Stage]:
    made = [Stage(number) for number in range(3)]
    for number, stage in enumerate(made):
        stage.commit(NOW, *(stage.send(NOW + 1_000 * (step % 5) + number + 1, "AB"[step % 2]) for step in range(20)))
        stage.commit(NOW + 1, stage.send(NOW + 2_000))
    return made


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_pages_hold_every_message_once_in_order(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "SLICE_MAX", 3)
    stages = three_partitions()
    found = pages(local(*stages), Wanted(limit=limit), [0, 1, 2])
    wanted = sorted((timer.due_ms, each.partition.number, timer.offset) for each in stages for timer in each.timers())
    assert [tuple(each.position) for each in found] == wanted


def test_a_page_looks_at_so_many_rows_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ROWS_MAX", 4)
    stages = three_partitions()
    held = local(*stages)
    page = held.page([0, 1, 2], Wanted(origin="B"))
    assert len(page.messages) < 4
    assert page.reached is not None
    found = pages(held, Wanted(origin="B"), [0, 1, 2])
    assert len(found) == sum(each.partition.counts.origins["B"] for each in stages) > 20
    assert {each.origin for each in found} == {"B"}


def test_a_page_says_how_many_messages_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    held = local(*three_partitions())
    assert held.page([0], Wanted(origin="nothing")) == Page([], None, 17)
    monkeypatch.setattr(entries, "ROWS_MAX", 4)
    page = held.page([0, 1, 2], Wanted(key="nothing"))
    assert (page.messages, page.examined) == ([], 4)
    assert page.reached is not None


def of(exception: str, group: str, *more: tuple[str, bytes | None]) -> Headers:
    own: Headers = [("retry-origin-topic", b"A"), ("retry-exception", exception.encode())]
    return [*own, ("retry-group", group.encode()), *more]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Wanted(exception="com.acme.Late"), {0, 1}),
        (Wanted(exception="com.acme.*"), {0, 1, 2}),
        (Wanted(exception="com.acme"), set()),
        (Wanted(exception="IbmError"), {4}),
        (Wanted(group="shop"), {0, 2}),
        (Wanted(group="s*"), {0, 2, 3}),
        (Wanted(key="key"), {0, 1, 2, 3, 4}),
        (Wanted(key="ke"), set()),
        (Wanted(headers=(("tenant", "acme"),)), {0, 2}),
        (Wanted(headers=(("tenant", "acme"), ("lang", "a:b"))), {2}),
        (Wanted(headers=(("lang", ""),)), set()),
        (Wanted(headers=(("tenant", "acme"),), exception="*.Late", group="shop", origin="A"), {0}),
    ],
    ids=str,
)
def test_messages_are_found_by_exception_group_key_and_headers(wanted: Wanted, numbers: set[int]) -> None:
    stage = Stage()
    tenant = ("tenant", b"acme")
    messages: list[Headers] = [
        of("com.acme.Late", "shop", tenant),
        of("com.acme.Late", "billing", ("lang", None)),
        of("com.acme.Odd", "shop", tenant, ("lang", b"a:b"), ("tenant", b"other")),
        of("org.Other", "stock", ("raw", b"\xff")),
        [("x-ibm-retry-target-topic", b"A"), ("x-ibm-retry-exception-type", b'"IbmError"')],
    ]
    stage.commit(NOW, *(stage.send(NOW + 1_000 + number, headers=each) for number, each in enumerate(messages)))
    for limit in (1, 100):
        found = pages(local(stage), replace(wanted, limit=limit), [0])
        assert {each.due_ms - NOW - 1_000 for each in found} == numbers


def test_bounds_are_of_the_stored_due() -> None:
    held = local(*three_partitions())
    found = pages(held, Wanted(due_from_ms=NOW + 2_000, due_to_ms=NOW + 2_002, limit=5), [0, 1, 2])
    assert {each.stored_due_ms for each in found} == {NOW + 2_000, NOW + 2_001}
    assert held.page([0], Wanted(due_from_ms=NOW, due_to_ms=NOW)).messages == []


def test_what_has_fired_is_not_listed_though_its_row_is_there_still() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + due) for due in (5, 50, 500)))
    before = dict(stage.store.rows)
    stage.commit(NOW + 60)
    rows = {row: value for row, value in before.items() if row[:1] == b"t"}
    stage.store.rows.update(rows)
    held = local(stage)
    assert [each.due_ms for each in held.page([0], Wanted()).messages] == [NOW + 500]
    assert held.find(TimerId(0, 0, NOW + 5), payload=False) is None
    assert held.find(TimerId(0, 2, NOW + 500), payload=False) is not None


def test_a_message_is_found_by_its_id_wherever_it_was_moved_to() -> None:
    stage = Stage()
    timer = TimerId(0, 0, NOW + 5_000)
    stage.commit(NOW, stage.send(timer.first_ms, retry_id="ü".encode()))
    stage.commit(NOW + 1, stage.control(ControlKind.RESCHEDULE, timer, NOW + 70_000))
    found = local(stage).find(timer, payload=False)
    assert found is not None
    assert found.model_dump(exclude_unset=True) == {
        "id": str(timer),
        "partition": 0,
        "offset": 0,
        "origin": "A",
        "due_ms": NOW + 70_000,
        "stored_due_ms": NOW + 70_000,
        "first_due_ms": timer.first_ms,
        "attempt": 1,
        "limit": 4,
        "retry_id": "ü",
        "deferred": False,
        "headers": [{"name": "retry-origin-topic", "value": "A"}, {"name": "trace", "value": None}],
    }
    for other in (TimerId(0, 0, NOW + 70_000), TimerId(0, 1, timer.first_ms), TimerId(0, 0, 0)):
        assert local(stage).find(other, payload=False) is None


def test_a_deferred_message_says_so() -> None:
    stage = Stage()
    stage.commit(NOW, stage.control(ControlKind.PAUSE, "A"), stage.send(NOW + 5))
    stage.commit(NOW + 10)
    (found,) = local(stage).page([0], Wanted()).messages
    assert (found.deferred, found.due_ms) == (True, NOW + 5)
    assert found.stored_due_ms > NOW + 10


def test_payloads_and_strange_headers_are_base64_and_null_stays_null() -> None:
    stage = Stage()
    stage.commit(
        NOW, stage.send(NOW + 5_000, value=b"\xff\x00", headers=[("h", b"\xfe")]), stage.send(NOW + 6_000, value=None)
    )
    held = local(stage)
    first = held.find(TimerId(0, 0, NOW + 5_000), payload=True)
    second = held.find(TimerId(0, 1, NOW + 6_000), payload=True)
    assert first is not None
    assert second is not None
    assert (first.key, first.value) == (base64.b64encode(b"key").decode(), base64.b64encode(b"\xff\x00").decode())
    assert first.headers[0].model_dump() == {
        "name": "h",
        "value": None,
        "value_base64": base64.b64encode(b"\xfe").decode(),
    }
    assert second.value is None
    assert "value" in second.model_fields_set


def test_an_answer_shows_the_first_headers_only_of_a_message_that_has_very_many() -> None:
    stage = Stage()
    bomb: Headers = [(f"h{number}", b"x") for number in range(60_000)]
    stage.commit(NOW, stage.send(NOW + 5_000, headers=bomb), stage.send(NOW + 6_000, headers=[("big", b"x" * 300_000)]))
    held = local(stage)
    many = held.find(TimerId(0, 0, NOW + 5_000), payload=False)
    big = held.find(TimerId(0, 1, NOW + 6_000), payload=False)
    assert many is not None
    assert big is not None
    assert (len(many.headers), many.headers_truncated) == (entries.HEADERS_MAX, True)
    assert ("big" in {each.name for each in big.headers}, big.headers_truncated) == (False, True)


def test_the_messages_of_one_answer_share_the_room_for_headers() -> None:
    room = entries.HeaderRoom()
    assert "headers_truncated" not in room.shown([(str(number), b"x") for number in range(600)])
    second = room.shown([(str(number), None) for number in range(600)])
    assert second["headers_truncated"] is True
    assert second["headers"] == [entries.header_body(str(number), None) for number in range(400)]
    assert room.shown([("one", None)]) == {"headers": [], "headers_truncated": True}


def test_the_messages_of_a_retry_id_are_in_due_order_and_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Stage(0), Stage(1)
    one.commit(NOW, *(one.send(NOW + due, retry_id=b"x") for due in (900, 300)), one.send(NOW + 1, retry_id=b"xx"))
    two.commit(NOW, two.send(NOW + 600, retry_id=b"x"))
    held = local(one, two)
    found = held.named(b"x", [0, 1], payload=False)
    assert [each.due_ms - NOW for each in found.messages] == [300, 600, 900]
    assert found.truncated is False
    monkeypatch.setattr(selection, "NAMED_MAX", 2)
    found = held.named(b"x", [0, 1], payload=False)
    assert (len(found.messages), found.truncated) == (2, True)
    assert held.named(b"y", [0, 1], payload=False).messages == []


def test_only_running_partitions_of_this_instance_are_its_own() -> None:
    views = [OWN, replace(OWN, partition=1, state="restoring"), replace(OWN, partition=2, owner="other")]
    assert LocalEntries(lambda: None, Snapshots(views, 3), "me").owned() == {0}
    nobody = [replace(OWN, owner="")]
    assert LocalEntries(lambda: None, Snapshots(nobody, 1)).owned() == frozenset()


def test_a_store_that_is_away_or_being_restored_is_not_read() -> None:
    away = LocalEntries(lambda: None, Snapshots([OWN], 1), "me")
    with pytest.raises(StoreFailed, match="state folder"):
        away.page([0], Wanted())
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5_000))
    row = stage.partition.rows.meta
    meta = decode_meta(stage.store.rows[row])
    changed = Mutations()
    changed.rows[row] = encode_meta(
        type(meta)(meta.format, *IDS, meta.changelog_offset, meta.checkpoint, restored=False)
    )
    stage.store.apply([changed])
    with pytest.raises(StoreFailed, match="restored"):
        local(stage).page([0], Wanted())


def test_a_store_that_is_closed_while_it_is_read_is_not_called_damaged(tmp_path: Path) -> None:
    stage = Stage()
    stage.commit(NOW, stage.send(NOW + 5_000))
    store = RocksStore(tmp_path / "db")
    everything = Mutations()
    everything.rows.update(stage.store.rows)
    store.apply([everything])
    store.close()
    shown: list[RocksStore | None] = [store, None]
    with pytest.raises(StoreFailed, match="closed meanwhile"):
        LocalEntries(lambda: shown.pop(0), Snapshots([OWN], 1), "me").page([0], Wanted())
