"""From the changelog into the state and back: what is pending stays the same, whatever the order and the compaction."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.changelog.codec import CHECKPOINT_KEY, Engine, encode_checkpoint
from sidecar.changelog.fold import fold
from sidecar.contract.control import ControlKind
from sidecar.spark.cells import META, decode_meta, encode
from sidecar.spark.handover import block_records, pending_entries, removed_records, take_over
from sidecar.spark.shard_store import ShardStore
from tests.simulation.stage import NOW, Stage
from tests.spark.dict_cells import DictCells

delays = st.integers(1, 1500) | st.integers(1, 10**8)
worlds = st.lists(st.tuples(st.integers(0, 10**6), st.lists(delays, min_size=1, max_size=6)), min_size=1, max_size=6)


@settings(max_examples=100)
@given(worlds, st.randoms(use_true_random=False), st.integers(1, 4))
def test_what_is_pending_survives_the_way_there_and_back(
    world: list[tuple[int, list[int]]], chance: object, parts: int
) -> None:
    stage, now_ms = Stage(), NOW
    for wait_ms, dues in world:
        now_ms += wait_ms
        sent = [stage.send(now_ms + delay_ms, "AB"[n % 2], retry_id=b"%d" % (n % 3)) for n, delay_ms in enumerate(dues)]
        stage.commit(now_ms, *sent)
    stage.commit(
        now_ms, stage.control(ControlKind.RESCHEDULE, b"1", now_ms + 50_000), stage.control(ControlKind.CANCEL, b"2")
    )
    folded = stage.folded()

    records = [(record.key, record.value) for record in stage.log.records if record.key != CHECKPOINT_KEY]
    records.append((CHECKPOINT_KEY, encode_checkpoint(folded.checkpoint)))
    chance.shuffle(records)  # type: ignore[attr-defined]  # what st.randoms() gives has no public name
    cells = DictCells()
    for at in range(parts):
        take_over(0, cells, records[at::parts])
    meta = decode_meta(cells.cells[META])
    store = ShardStore(cells, meta, 0)
    store.settle()
    store.finish()
    cells.put(META, encode(meta))
    assert {entry[:16]: entry for entry in store.entries()} == folded.pending
    assert meta.checkpoint == replace(folded.checkpoint, engine=Engine.SPARK)
    assert meta.counts() == stage.partition.counts

    entries = pending_entries(0, cells.cells)
    back = [*block_records(entries, 99), *removed_records(0, cells.cells)]
    back.append((CHECKPOINT_KEY, encode_checkpoint(folded.checkpoint)))
    assert fold(back).pending == folded.pending
