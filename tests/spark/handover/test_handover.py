"""The changelog into the state and back: the same timers stay pending, in any order and after any compaction."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.changelog.codec import BLOCK_BYTES_MAX, CHECKPOINT_KEY, Engine, encode_checkpoint
from sidecar.changelog.entry import LEVEL_AT
from sidecar.contract.control import ControlKind
from sidecar.spark.handover.changelog import slot_end_of, sorted_blocks, take_over
from sidecar.spark.state.entries import META, decode_meta, encode
from sidecar.spark.state.shard_store import ShardStore
from tests.fold import fold
from tests.simulation.stage import NOW, Stage
from tests.spark.state.dict_state import DictState, pending, removed_in

delays = st.integers(1, 1500) | st.integers(1, 10**8)
worlds = st.lists(st.tuples(st.integers(0, 10**6), st.lists(delays, min_size=1, max_size=6)), min_size=1, max_size=6)


@settings(max_examples=100)
@given(worlds, st.randoms(use_true_random=False), st.integers(1, 4))
def test_what_is_pending_survives_the_way_there_and_back(
    world: list[tuple[int, list[int]]], chance: object, parts: int
) -> None:
    stage, now_ms = Stage(), NOW
    for topic, (wait_ms, dues) in enumerate(world):
        now_ms += wait_ms
        # Each time in another topic, so the same offsets come again.
        stage.partition.checkpoint = stage.partition.checkpoint.of_topic(f"topic {topic}", 0)
        stage.next_offset = 0
        sent = [stage.send(now_ms + delay_ms, "AB"[n % 2], retry_id=b"%d" % (n % 3)) for n, delay_ms in enumerate(dues)]
        stage.commit(now_ms, *sent)
    stage.commit(
        now_ms, stage.control(ControlKind.RESCHEDULE, b"1", now_ms + 50_000), stage.control(ControlKind.CANCEL, b"2")
    )
    folded = stage.folded()

    records = [(record.key, record.value) for record in stage.log.records if record.key != CHECKPOINT_KEY]
    records.append((CHECKPOINT_KEY, encode_checkpoint(folded.checkpoint)))
    chance.shuffle(records)  # type: ignore[attr-defined]  # what st.randoms() gives has no public name
    state = DictState()
    for at in range(parts):
        take_over(0, state, records[at::parts])
    meta = decode_meta(state.entries[META])
    store = ShardStore(state, meta, 0)
    while not store.settle():
        pass
    store.finish()
    state.put(META, encode(meta))
    assert pending(state.entries) == folded.pending
    assert meta.checkpoint == replace(folded.checkpoint, engine=Engine.SPARK)
    assert meta.counts() == stage.partition.counts

    entries = sorted(((0, entry) for entry in pending(state.entries).values()), key=lambda row: _place(row[1]))
    back = [(key, value) for _, key, value in sorted_blocks(entries, {0: 99})]
    assert len({key for key, _ in back}) == len(back)
    back += removed_in(state.entries)
    back.append((CHECKPOINT_KEY, encode_checkpoint(folded.checkpoint)))
    assert fold(back).pending == folded.pending


def _place(entry: bytes) -> tuple[int, int]:
    return slot_end_of(entry), entry[LEVEL_AT]


def test_a_slot_with_more_than_a_block_takes_becomes_several_that_have_names_of_their_own() -> None:
    stage = Stage()
    stage.commit(NOW, *(stage.send(NOW + 5_000_000, value=b"v" * 100_000) for _ in range(30)))
    entries = [(number, entry) for number in (0, 1) for entry in stage.folded().pending.values()]
    records = list(sorted_blocks(entries, {0: 7, 1: 8}))
    assert len({(partition, key) for partition, key, _ in records}) == len(records) == 12
    assert all(len(value) < BLOCK_BYTES_MAX + 1000 for _, _, value in records)
    first = [(key, value) for partition, key, value in records if partition == 0]
    checkpoint = (CHECKPOINT_KEY, encode_checkpoint(stage.folded().checkpoint))
    assert fold([*first, checkpoint]).pending == stage.folded().pending
