"""Repeats measurements until enough of them were quiet, and makes one figure of each name from all runs."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from confluent_kafka import KafkaError, KafkaException

from bench.figures import TARGETS, Figure, percent
from bench.steal import sample, stolen
from bench.waiting import LateError, say

QUIET_STEAL = 0.05
"""The largest share of stolen processor time with which a run counts."""
REPEATS_MAX = 5
_TIMED_OUT = frozenset({KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT})

Act = Callable[[], Sequence[Figure]]
"""Measures once."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a measurement."""

    figures: Sequence[Figure]
    steal: float
    """Share of the processor time that was stolen meanwhile."""
    late: str = ""
    """Why nothing was measured: the machine was too slow."""
    failed: bool = False
    """A defect ended it: its figures have failed."""

    @property
    def counts(self) -> bool:
        """Whether the figures say something about the sidecar."""
        return not self.late and self.steal <= QUIET_STEAL


def wants_another(runs: Sequence[Run], wanted: int) -> bool:
    """Return whether to measure once more, to have `wanted` runs that count."""
    counting = sum(run.counts for run in runs)
    return counting < wanted and len(runs) - counting <= REPEATS_MAX


def summary(names: Sequence[str], runs: Sequence[Run], wanted: int) -> list[Figure]:
    """Return one figure for each name: the median of the runs that count, or of all runs, and then noisy."""
    counting = [run for run in runs if run.counts]
    noisy = "" if len(counting) >= wanted else _reason(runs, len(counting), wanted)
    return [_merged(name, runs if noisy else counting, runs, noisy) for name in names]


def _merged(name: str, chosen: Sequence[Run], every: Sequence[Run], noisy: str) -> Figure:
    exact = any(figure.exact for run in every for figure in run.figures if figure.name == name)
    found = [
        (figure, run.steal) for run in (every if exact else chosen) for figure in run.figures if figure.name == name
    ]
    steal = max((run.steal for run in (every if noisy else chosen)), default=math.nan)
    if not found:
        return replace(TARGETS[name], noisy=noisy or "not measured", steal=steal)
    figures = sorted((figure for figure, _ in found), key=lambda figure: figure.measured)
    values = [figure.measured for figure in figures]
    first = figures[len(figures) // 2]
    if exact:
        first = figures[-1] if first.sense == "at most" else figures[0]
        noisy = ""
    value = first.measured if exact else median(values)
    return replace(first, measured=value, values=tuple(values), noisy=noisy, steal=steal)


def _reason(runs: Sequence[Run], counting: int, wanted: int) -> str:
    late = [run.late for run in runs if run.late]
    stolen_from = sum(run.steal > QUIET_STEAL for run in runs)
    parts = [f"{counting} of {wanted} runs count"]
    if stolen_from:
        parts.append(f"{stolen_from} had more than {percent(QUIET_STEAL)} steal")
    return "; ".join([*parts, *late[-1:]])


def attempt(names: Sequence[str], act: Act) -> Run:
    """Measure once. Neither a machine that is too slow nor a defect ends the benchmark: the other figures go on."""
    before = sample()
    try:
        found = act()
    except Exception as error:  # noqa: BLE001  # it is shown, and the figures have failed
        if too_slow(error):
            return Run((), stolen(before, sample()), str(error).partition("\n")[0])
        traceback.print_exception(error)
        why = f"{type(error).__name__}: {error}"[:200]
        return Run([replace(TARGETS[name], failed=why) for name in names], stolen(before, sample()), failed=True)
    return Run(found, stolen(before, sample()))


def once(names: Sequence[str], act: Act) -> list[Figure]:
    """Return the figures of a measurement that repeats its parts itself."""
    run = attempt(names, act)
    return [replace(TARGETS[name], noisy=run.late, steal=run.steal) for name in names] if run.late else [*run.figures]


def repeat(names: Sequence[str], act: Act, wanted: int) -> list[Figure]:
    """Measure until `wanted` runs count, or too many did not; return the figures of these names."""
    runs: list[Run] = []
    while wants_another(runs, wanted):
        run = attempt(names, act)
        if run.failed:
            return [*run.figures]
        say(
            f"{names[0]}: {percent(run.steal)} steal" + ("" if run.counts else f", does not count. {run.late}".rstrip())
        )
        runs.append(run)
    return summary(names, runs, wanted)


def too_slow(error: Exception) -> bool:
    """Return whether a slow machine explains the failure: something was not done within its time."""
    if isinstance(error, KafkaException):
        return error.args[0].code() in _TIMED_OUT
    return isinstance(error, LateError | TimeoutError)
