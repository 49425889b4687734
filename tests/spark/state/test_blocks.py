"""The blocks of a slot: however they are merged and paged, each entry is found, and taken once."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.changelog.entry import KEY_BYTES, MOVING, lasting
from sidecar.spark.state import blocks
from sidecar.spark.state.blocks import Blocks
from sidecar.spark.state.entries import Meta
from tests.spark.state.dict_state import DictState

SLOT_KEY = (2, 5)
LASTING = lasting(1, 1, 0, 1, 1, b"orders", None, b"key", b"value", [])


def entry(offset: int) -> bytes:
    return MOVING.pack(1000 + offset % 7, offset, 1000, SLOT_KEY[0], 0) + LASTING


@settings(max_examples=60)
@given(st.permutations(range(60)), st.integers(1, 9), st.integers(1, 3000))
def test_each_entry_is_found_and_taken_once(order: list[int], each: int, limit_bytes: int) -> None:
    # Half of them come in the order of their offsets, as messages do.
    offsets = [*range(100, 160), *order]
    state, meta = DictState(), Meta()

    def open_blocks() -> Blocks:
        return Blocks(state, meta, iter)

    with patch.multiple(blocks, FULL_BYTES=400, MERGED=2, PAGE_REFS=2):
        for at in range(0, len(offsets), each):
            store = open_blocks()
            store.add(SLOT_KEY, [entry(offset) for offset in offsets[at : at + each]])
            store.save()
            assert store.slots[SLOT_KEY].bytes == sum(
                len(value) for state_key, value in state.entries.items() if state_key[:1] == b"b"
            )
        assert any(state_key[:1] == b"s" for state_key in state.entries) or each > 6
        for offset in offsets:
            assert open_blocks().find(SLOT_KEY, entry(offset)[:KEY_BYTES]) == entry(offset)
        assert open_blocks().find(SLOT_KEY, entry(99)[:KEY_BYTES]) is None
        taken: list[bytes] = []
        while SLOT_KEY in (store := open_blocks()).slots:
            part = store.take(SLOT_KEY, limit_bytes)
            assert part
            taken += part
            store.save()
    assert sorted(taken) == sorted(map(entry, offsets))
    assert state.entries == {}
