"""The state of a partition, copied into another query: it makes the same plans, in any parts."""

from __future__ import annotations

import pytest

from sidecar.spark.handover.copy import asks_for_timer, copied
from sidecar.spark.state.entries import META, STOPPED, Stopped, decode_meta, encode
from tests.output_parts import encode_output_part
from tests.spark.state.dict_state import pending
from tests.spark.stream.test_partition_step import World, order


def world() -> World:
    """Return a partition with messages that wait for seconds and for a day, some of them cancelled."""
    made = World()
    made.settle(*(made.record(*order(5_000 + n, ("retry-id", b"a%d" % (n % 7)))) for n in range(60)))
    made.settle(*(made.record(*order(86_400_000 + n)) for n in range(40)))
    cancel = (("retry-control", b"cancel"), ("retry-target", b"id:a3"), ("retry-control-id", b"c"))
    made.settle(made.record(*cancel))
    return made


@pytest.mark.parametrize("parts", [1, 3])
def test_a_copy_makes_the_same_plans(parts: int) -> None:
    former, new = world(), World()
    entries = list(former.state.entries.items())
    wakes_ms = former.now_ms + 1
    changes = [copied(entries[part::parts], wakes_ms) for part in range(parts)]
    assert [asks_for_timer(each) for each in changes].count(True) == 1
    for state_key, value in (pair for each in changes for pair in each.items()):
        assert value is not None
        new.state.put(state_key, value)
    assert decode_meta(new.state.entries[META]).wakes_ms == wakes_ms
    assert pending(new.state.entries) == pending(former.state.entries)
    new.now_ms, new.offset = former.now_ms, former.offset
    for _ in range(4):
        sent = [
            [encode_output_part(part) for part in each.settle(each.record(*order(2_000)))] for each in (former, new)
        ]
        assert sent[0] == sent[1]
    assert any(sent[0])


def test_a_partition_that_has_stopped_is_tried_again_though_its_state_cannot_be_read() -> None:
    stopped = Stopped("it is damaged", 5, 6, 7)
    changes = copied([(META, b"damaged"), (STOPPED, encode(stopped))], 99)
    assert changes == {META: b"damaged", STOPPED: encode(Stopped("it is damaged", 5, 6, 99))}
    assert asks_for_timer(changes)
    assert not asks_for_timer(copied([(b"b", b"block")], 99))
