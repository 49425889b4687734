"""The control records of the worlds: as ingest reads them, and the timers that stand where a filter looks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sidecar.changelog.codec import Unfinished
from sidecar.changelog.entry import KEY, KEY_BYTES, head
from sidecar.contract.control import ControlKind, Target, render_control, sign_control
from sidecar.contract.filter import MessageFilter
from sidecar.engine.ingest import Ingest
from sidecar.engine.items import Item
from sidecar.engine.partition import Partition
from sidecar.engine.ports import StoreReader
from sidecar.model import Record, TimerId
from sidecar.policy import Policy, PolicyConfig
from tests.simulation.audit import rows_of
from tests.simulation.reference import ALWAYS_MS, Command, Id, Input, Match

TOKEN = "token"
INGEST = Ingest(Policy(PolicyConfig()), [], {}, (), input_topic="retry", app_id="app", api_token=TOKEN)


def by_filter(rng: Random, offset: int, origin: str | None, dues_ms: Sequence[int]) -> Command:
    """Return a command with a filter, by due times in two of five cases; the first one is that of a reschedule."""
    due_ms, *bounds_ms = dues_ms
    wanted = Match(origin, 0, ALWAYS_MS) if rng.random() < 0.6 else Match(origin, min(bounds_ms), max(bounds_ms))
    return Command(offset, rng.choice(["cancel", "reschedule", "fire"]), wanted, due_ms)


def item_of(command: Command, base: int, now_ms: int) -> Item:
    """Make a control record as any language would, and let ingest read it."""
    forged = command.kind == "forged"
    kind = ControlKind.CANCEL if forged else ControlKind(command.kind)
    due_ms = max(0, command.due_ms) if kind is ControlKind.RESCHEDULE else None
    headers = render_control(kind, _target_of(command), f"command-{command.offset}", due_ms)
    headers.append(sign_control(headers, "a stranger's" if forged else TOKEN, "retry", 0, now_ms))
    offset = command.offset - base
    item = INGEST.examine(Record(0, offset, now_ms, None, None, headers), now_ms)
    assert not isinstance(item, str)
    return item


def _target_of(command: Command) -> Target:
    target = command.target
    if isinstance(target, Match):
        return MessageFilter(target.origin, None, target.due_from_ms, target.due_to_ms)
    return TimerId(0, *target) if isinstance(target, tuple) else target


def met_by_filters(
    inputs: Sequence[Input], partition: Partition, store: StoreReader, after: Unfinished | None, base: int
) -> dict[int, list[Id]]:
    """Return the timers that each filter looks at in a transaction, in the order of their keys.

    Args:
        inputs: Those of the transaction; the last one may be done in part.
        partition: As it was before the transaction.
        store: As it was before the transaction.
        after: The progress behind the transaction.
        base: What timer ids add to the offsets of the topic.
    """
    begun = partition.checkpoint.unfinished
    met: dict[int, list[Id]] = {}
    for at, command in enumerate(inputs):
        if not isinstance(command, Command) or not isinstance(command.target, Match):
            continue
        start, end, wanted = partition.watermark, KEY.pack(ALWAYS_MS, 0), command.target
        if begun is not None and at == 0 and begun.control_offset == command.offset - base:
            start = max(start, KEY.pack(begun.seen_first_ms, begun.seen_offset))
        if after is not None and at == len(inputs) - 1 and after.control_offset == command.offset - base:
            end = KEY.pack(after.seen_first_ms, after.seen_offset)
        entries = rows_of(store, partition.rows.timer).values()
        heads = [head(each) for each in sorted(entries) if start < each[:KEY_BYTES] <= end]
        met[command.offset] = [
            (each.offset, each.first_ms) for each in heads if wanted.due_from_ms <= each.due_ms < wanted.due_to_ms
        ]
    return met
