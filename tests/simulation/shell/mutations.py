"""Defects that the runtime once had, made again on purpose: the worlds must find each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from tests.simulation.mutations import Mutation
from tests.simulation.shell.story import run


class Defect(NamedTuple):
    """A mistake, and worlds that find it."""

    mutation: Mutation
    seeds: tuple[int, ...] = ()
    more: tuple[Mutation, ...] = ()
    """What else was not there then, and would hide it."""

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the mistake for a while."""
        with ExitStack() as stack:
            for each in (self.mutation, *self.more):
                stack.enter_context(each.applied())
            yield


DEFECTS: Final = (
    Defect(
        Mutation(
            "a record too large for the changelog fails for ever",
            "runtime.transaction.oversize:Oversize._unwritten",
            "self.unstorable[place] = text",
            "pass",
        ),
        seeds=(146,),
    ),
    Defect(
        Mutation(
            "a dead letter too large for the DLQ is never cut",
            "runtime.transaction.oversize:Oversize._cut",
            "self.cut_dead_letters[place] = bytes_max if before is None or bytes_max < before else 0",
            "pass",
        ),
        seeds=(4,),
    ),
    Defect(
        Mutation(
            "a dead letter goes to another DLQ",
            "engine.transaction:Terms.dlq_of",
            "self.dlq_topic if self.policy_dlqs is None else self.policy_dlqs.choose(key, value, headers)",
            "self.dlq_topic",
        ),
        seeds=(5,),
    ),
    Defect(
        Mutation(
            "batches are larger than the smallest topic takes",
            "runtime.transaction.limits:Limits.unfit",
            "min(self._batch_bytes, *map(self.of, self._topics(made)))",
            "self._batch_bytes",
        ),
        seeds=(1,),
        more=(
            Mutation(
                "a refused batch is not taken apart",
                "runtime.transaction.oversize:Oversize.learn",
                "self.singly = True",
                "self.singly = False",
            ),
        ),
    ),
    Defect(
        Mutation(
            "a transaction that was too slow is tried again as it was",
            "runtime.transaction.pace:Pace._shrink",
            "// times",
            "// 1",
        ),
        seeds=(16,),
    ),
    Defect(
        Mutation(
            "a closure is never forgotten",
            "runtime.origins:ClosedOrigins.fired",
            "if name in self._closures",
            "if False",
        ),
        seeds=(399,),
    ),
    Defect(
        Mutation(
            "headers are not counted",
            "runtime.partitions.buffer:_take",
            "HEADER_BYTES * held.headers",
            "0",
        ),
        seeds=(11,),
    ),
    Defect(
        Mutation(
            "no partition recovers before each has its offsets",
            "runtime.partitions.start_offsets:StartOffsets._retry_later",
            "kept = frozenset(answered)",
            "kept = frozenset(answered if len(query.partitions) == len(list(answered)) else ())",
        ),
        seeds=(21,),
        more=(
            Mutation(
                "those without an answer are queried with the others",
                "runtime.partitions.start_offsets:StartOffsets._ask",
                "due[bool(partition.reason) or number in self._late]",
                "due[False]",
            ),
        ),
    ),
    Defect(
        Mutation(
            "a committed offset wins over its checkpoint",
            "runtime.partitions.recovery:Recovery._wanted_offset",
            "if (mark := restoring.mark) is None",
            "if True",
        ),
        seeds=(26,),
    ),
    Defect(
        Mutation(
            "a partition whose changelog takes no writes stays in every transaction",
            "runtime.partitions.recovery:Recovery.back_off",
            "unwritten if others_run else {}",
            "{}",
        ),
        seeds=(31,),
    ),
)


def first_failure(seeds: Iterable[int]) -> Exception | None:
    """Return the failure of the first world that has one."""
    for seed in seeds:
        try:
            run(seed)
        except Exception as failure:  # noqa: BLE001 - a defect shows as a false ledger, an invariant, a KeyError
            return failure
    return None
