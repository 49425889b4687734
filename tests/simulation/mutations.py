"""Deliberate mistakes: each removes one rule of the engine by changing one line of its source.

A line that is no longer there makes the mutation fail loudly, so that it moves along with the code.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import NamedTuple

from sidecar.engine import hot


class Mutation(NamedTuple):
    """A change: in `place` (module:function or module:Class.method) every text `old` becomes `new`."""

    name: str
    place: str
    old: str
    new: str
    compiled: bool = False
    """What is compiled stays on: the mistake is in what calls it, or in no function that is compiled too."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the mutation for the length of the block."""
        module_name, path = self.place.split(":")
        module = importlib.import_module(f"sidecar.{module_name}")
        owner, _, name = path.rpartition(".")
        holder: object = getattr(module, owner) if owner else module
        original = getattr(holder, name)
        source = "from __future__ import annotations\n" + textwrap.dedent(inspect.getsource(original))
        assert self.old in source, f"{self.place} no longer has {self.old!r}: change the mutation {self.name!r} with it"
        code = compile(source.replace(self.old, self.new), f"<{self.name}>", "exec")
        found: dict[str, FunctionType] = {}
        exec(code, vars(module), found)
        # The code within the function, not the name: others may have imported it.
        right, compiled = original.__code__, hot.COMPILED
        original.__code__ = found[name].__code__
        # What is compiled has no lines to change here: see `compiled.py`.
        hot.COMPILED = compiled and self.compiled  # type: ignore[misc]  # restored below
        try:
            yield
        finally:
            original.__code__, hot.COMPILED = right, compiled  # type: ignore[misc]


MUTATIONS = (
    Mutation(
        "watermark moves back",
        "engine.plan:_Planner._watermark",
        "max(self.overlay.watermark, KEY.pack(self.now_ms, OFFSET_MAX))",
        "KEY.pack(self.now_ms, OFFSET_MAX)",
    ),
    Mutation("a rolled back commit is believed", "engine.restore:Restore._load", "= meta.to_confirm", "= -1"),
    Mutation(
        "an assignment proves what it rolled back",
        "changelog.codec:Checkpoint.follows",
        "earlier.sequence <= lasts.get(earlier.assignment, -1)",
        "earlier.assignment in lasts",
    ),
    Mutation("watermark off by one", "engine.plan:_Planner._watermark", "self.now_ms", "self.now_ms + 1"),
    Mutation("bounded scan taken for a complete one", "engine.plan:_Planner._watermark", "if self.complete", "if self"),
    Mutation(
        "scan compares dues, not keys",
        "engine.read_ahead:due_in_turn",
        'watermark + b"\\0"',
        '(int.from_bytes(watermark[:8], "big") + 1).to_bytes(8, "big") + bytes(8)',
    ),
    Mutation(
        "pruning compares dues, not keys",
        "engine.records:removed_records",
        "key > watermark",
        "KEY.unpack(key)[0] > KEY.unpack(watermark)[0]",
    ),
    Mutation(
        "tombstones of removed compare dues, not keys",
        "engine.records:tombstones",
        'rows.removed + watermark + b"\\0"',
        "rows.removed + KEY.pack(watermark_ms + 1, 0)",
    ),
    Mutation("no clamp for a new timer", "engine.overlay:Overlay._store_new", "<= self.watermark:", "< b'':"),
    Mutation("no clamp for a moved timer", "engine.overlay:Overlay.store_again", "<= self.watermark:", "< b'':"),
    Mutation(
        "a key that the same plan removed is used again",
        "engine.overlay:Overlay._is_used",
        "key in self.taken or ",
        "",
    ),
    Mutation(
        "a key that was removed before is used again",
        "engine.overlay:Overlay._is_used",
        "self._store.get(self.rows.removed + key) is not None",
        "False",
    ),
    Mutation(
        "a pending key is used again",
        "engine.overlay:Overlay._is_used",
        "self.entry_at(key) is not None",
        "False",
    ),
    Mutation("no o row for a clamped timer", "engine.overlay:Overlay._store_new", "stored_ms != due_ms", "False"),
    Mutation("no o row for a moved timer", "engine.overlay:Overlay.store_again", "due_ms != fixed.first_ms", "False"),
    Mutation(
        "no n row for a moved timer",
        "engine.overlay:Overlay.store_again",
        ") is not None:\n        self._name",
        ") == 0:\n        self._name",
    ),
    Mutation(
        "retry ids of the same plan not seen",
        "engine.overlay:Overlay._named_dues",
        "for row in changed:",
        "for row in ():",
    ),
    Mutation(
        "a timer with another id taken for the timer",
        "engine.overlay:Overlay.find",
        " and head(entry).first_ms == first_ms",
        "",
    ),
    Mutation(
        "level recomputed at fire",
        "engine.overlay:Overlay.count_off",
        "slot = (fixed.level, fixed.due_ms // WIDTHS_MS[fixed.level])",
        "level = bisect_right(self._level_ends_ms, fixed.due_ms)\n    slot = (level, fixed.due_ms // WIDTHS_MS[level])",
    ),
    Mutation(
        "level recomputed at fire of a timer that nothing points at",
        "engine.deliver:Rendering.due",
        "(level, due_ms // WIDTHS_MS[level])",
        "(0, due_ms // WIDTHS_MS[0])",
    ),
    Mutation("a timer with a retry id leaves its row", "engine.deliver:Rendering.due", " and not named", ""),
    Mutation("a moved timer leaves its row", "engine.deliver:Rendering.due", "due_ms == first_ms and ", ""),
    Mutation(
        "fires at once to an origin that is not open",
        "engine.plan:_Planner._open_origin",
        "self.controls.closure_of(name) is not None",
        "False",
    ),
    Mutation(
        "tombstone at slot start",
        "engine.records:tombstones",
        "watermark_ms, _ = KEY.unpack(watermark)",
        "watermark_ms = KEY.unpack(watermark)[0] + 1000",
    ),
    Mutation(
        "a replay is taken for a new record",
        "engine.plan:_Planner._arrive",
        "input_offset < self.highest",
        "False",
    ),
    Mutation(
        "a replay is looked up by key, not by id",
        "engine.plan:_Planner._arrive",
        "self.overlay.find(offset, due_ms)",
        "self.overlay.entry_at(KEY.pack(due_ms, offset))",
    ),
    Mutation(
        "highest ever not kept",
        "engine.plan:_Planner.ingest",
        "max(self.highest, self.next_input_offset)",
        "self.next_input_offset",
    ),
    Mutation(
        "a recreated topic begins at the old offsets",
        "changelog.codec:Checkpoint.of_topic",
        "self.stored_offset(self.highest_input_offset)",
        "0",
    ),
    Mutation(
        "the offsets of all topics but the last are forgotten",
        "changelog.codec:Checkpoint.of_topic",
        "self.stored_offset(self.highest_input_offset)",
        "self.highest_input_offset",
    ),
    Mutation(
        "the checkpoint forgets the offset base",
        "engine.plan:_Planner.finish",
        "offset_base=self.offset_base",
        "offset_base=0",
    ),
    Mutation(
        "a message is stored by its input offset",
        "engine.plan:_Planner._arrive",
        "self.offset_base + input_offset",
        "input_offset",
    ),
    Mutation(
        "a message of a recreated topic counts as new forever",
        "engine.plan:_Planner._arrive",
        "input_offset < self.highest",
        "self.offset_base + input_offset < self.highest",
    ),
    Mutation(
        "a control record goes on in another topic",
        "changelog.codec:Checkpoint.of_topic",
        "unfinished=None",
        "unfinished=self.unfinished",
    ),
    Mutation(
        "a replayed control record answers again",
        "engine.plan:_Planner._control",
        "item.offset < self.highest",
        "False",
    ),
    Mutation(
        "a control record that is done in part begins again",
        "engine.controls:Controls._act_on",
        "self.unfinished or Unfinished(control.offset)",
        "Unfinished(control.offset)",
    ),
    Mutation(
        "a control record that is done in part counts as done",
        "engine.controls:Controls._act_on",
        "progress if full and progress.seen_offset >= 0 else None",
        "None",
    ),
    Mutation(
        "a control record goes on though the offsets were set back",
        "engine.controls:Controls.begin",
        "!= first_offset",
        "== -1",
    ),
    Mutation(
        "the checkpoint forgets how far a control record came",
        "engine.plan:_Planner.finish",
        "unfinished=self.controls.unfinished",
        "unfinished=None",
    ),
    Mutation(
        "fires by command to an origin that is not open",
        "engine.controls:Controls._blocker",
        "self.closure_of(origin)) is not None",
        "self.closure_of(origin)) == 0",
    ),
    Mutation(
        "a filter begins with what is not committed",
        "engine.controls:Controls._must_wait",
        "return by_filter and",
        "return False and",
    ),
    Mutation(
        "a filter begins again in each transaction",
        "engine.controls:Controls._in_range",
        "progress.seen_offset >= 0",
        "False",
    ),
    Mutation(
        "a filter goes by the ids of its timers",
        "engine.controls:Controls._act_on",
        "fixed.due_ms if by_filter",
        "fixed.first_ms if by_filter",
    ),
    Mutation(
        "a filter moves again what it has moved",
        "engine.controls:_matcher",
        "fixed.requested_ms != done_ms and",
        "",
    ),
    Mutation(
        "a filter ends where a transaction does",
        "engine.controls:Controls._in_range",
        "len(entries) >= limit or sum(map(len, entries)) >= limit_bytes",
        "False",
    ),
    Mutation(
        "a filter takes what is due outside of it",
        "engine.controls:Controls._in_range",
        "KEY.pack(wanted.due_to, 0)",
        "KEY.pack(2**63, 0)",
    ),
    Mutation(
        "fires by command to an unknown origin",
        "engine.controls:Controls.is_unknown",
        "origin not in self._terms.origins",
        "False",
    ),
    Mutation("an overdue arrival is stored", "engine.plan:_Planner._arrive", "due_ms > self.now_ms", "True"),
    Mutation("what ingest took fires too", "engine.plan:_Planner._dispose_of", "key not in overlay.taken", "True"),
    Mutation("what ingest took fires at once", "engine.plan:_Planner._open_origin", "self.overlay.taken or ", ""),
    Mutation("fires to a closed origin", "engine.plan:_Planner._dispose", "self.controls.closure_of(origin)", "None"),
    Mutation("fires while the whole group is paused", "engine.controls:Controls._close", "every is None", "True"),
    Mutation(
        "deferred is forgotten",
        "engine.plan:_Planner._dispose",
        "self._defer(entry, fixed, origin, closed.since_ms)",
        "True",
    ),
    Mutation("a paused origin times out", "engine.plan:_Planner._dispose", "closed.why != Closure.PAUSED", "True"),
    Mutation("next slot end is not lowered", "engine.apply:apply_committed", "partition_plan.stored_end_ms", "None"),
    Mutation(
        "removed that is left over is forgotten",
        "engine.partition:Partition.wakes_at_ms",
        "if self.removed_passed",
        "if False",
    ),
    Mutation(
        "restore slices without their counters", "engine.restore:Restore._write", "in counts.rows(delta)", "in ()"
    ),
    Mutation(
        "a restore from the start says how far it is",
        "engine.restore:Restore._write",
        "if self._bulk is None",
        "if True",
    ),
    Mutation(
        "restore does not count off what the watermark covers",
        "engine.restore:Restore.settle",
        "self._drop(entry, mutations, delta)",
        "pass",
    ),
    Mutation(
        "restore settles from the old watermark after a kill",
        "engine.restore:Restore._load",
        "if meta.restored",
        "if True",
    ),
    Mutation("restore ignores removed records", "engine.restore:Restore._removed", "if entry is not None", "if False"),
    Mutation(
        "restore drops rows that point elsewhere",
        "engine.restore:Restore._unpoint",
        "value == entry[DUE]",
        "value",
    ),
    Mutation("restore writes no o row", "engine.restore:restore_entry", "entry[DUE] != entry[FIRST_DUE]", "False"),
    Mutation(
        "restore writes no n row", "engine.restore:restore_entry", "entry[RETRY_ID_LENGTH] != NO_RETRY_ID", "False"
    ),
    Mutation(
        "a store row says more than its batch",
        "engine.restore:Restore.apply",
        "records[-1].offset + 1",
        "records[-1].offset + 2",
    ),
    Mutation("a turn is taken twice", "engine.rates:Turns.take", "turn + self._every[origin]", "turn"),
    Mutation("a turn below the watermark", "engine.rates:Turns._turn", "max(turn, self._stored_from_ns)", "turn"),
    Mutation("the turns of the past are all kept", "engine.rates:Turns._turn", ", self._earliest_ns", ""),
    Mutation("a missed turn is still good", "engine.rates:Turns.missed", "> self._late_ms", "> 10**15"),
    Mutation("a restart forgets the turns", "engine.rates:Turns._begin", "if former is None", "if True"),
    Mutation("turns that others took are forgotten", "engine.rates:Turns.kept", "**self._former, ", ""),
    Mutation("order per key is not kept", "engine.plan:_Planner._wait", "self.overlay.ahead(entry, fixed)", "None"),
    Mutation(
        "timers of the same plan do not count for the order",
        "engine.lanes:Lanes.ahead",
        "bisect_left(changed.stored, (offset, 0))",
        "0",
    ),
    Mutation(
        "a later message crosses none",
        "engine.crossings:Crossings.append",
        "crosses=due_ms < latest_ms",
        "crosses=False",
    ),
    Mutation("a moved timer is out of order", "changelog.entry:moved", "entry[FLAGS_AT] & ORDERED", "0"),
    Mutation("a rescheduled timer is out of order", "engine.controls:Controls._change", "fixed.flags & ORDERED", "0"),
    Mutation("restore writes no k row", "engine.restore:restore_entry", "entry[FLAGS_AT] & ORDERED", "False"),
)
