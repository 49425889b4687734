"""Figures, their targets, and how they are printed. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.table import Table

from bench.attackers import ATTACKS


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; without a target it only informs."""

    name: str
    what: str
    measured: float
    unit: str = ""
    target: float | None = None
    sense: Literal["at least", "at most"] = "at least"
    note: str = ""
    exact: bool = False
    """The speed of the machine does not change it: the worst run counts, also when it was noisy."""
    values: tuple[float, ...] = ()
    """Of the runs that `measured` is the median of, ascending."""
    steal: float = math.nan
    """The largest share of stolen processor time in a run."""
    noisy: str = ""
    """Why the figure says nothing about the sidecar."""
    failed: str = ""
    """The defect that the measurement met."""

    @property
    def met(self) -> bool:
        """Whether the target is met; true without one. NaN meets none."""
        if self.target is None:
            return not self.failed
        return self.measured >= self.target if self.sense == "at least" else self.measured <= self.target

    @property
    def verdict(self) -> Literal["", "pass", "MISS", "FAIL", "noisy"]:
        """A noisy figure is neither met nor missed; one without a target only informs."""
        if self.failed:
            return "FAIL"
        if self.noisy:
            return "noisy"
        return "" if self.target is None else "pass" if self.met else "MISS"


TARGETS: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("relay", "transactional relay, the yardstick", math.nan, "msg/s"),
        Figure("store", "store ÷ relay", math.nan, "×", 0.85),
        Figure("store_rate", "stored", math.nan, "msg/s"),
        Figure("store_cpu", "processor time of a stored message", math.nan, "µs", 10, "at most"),
        Figure("fire", "fire ÷ relay", math.nan, "×", 1.0),
        Figure("fire_rate", "fired", math.nan, "msg/s"),
        Figure("fire_cpu", "processor time of a fired message", math.nan, "µs", 8.5, "at most"),
        Figure("both", "store and fire at once, in = out ÷ relay", math.nan, "×", 0.42),
        Figure("both_rate", "stored and fired at once", math.nan, "msg/s"),
        Figure("both_cpu", "processor time of a message, stored and fired", math.nan, "µs"),
        Figure("redrive", "redrive of 100,000 dead letters ÷ relay", math.nan, "×", 0.5),
        Figure("redrive_rate", "redriven", math.nan, "msg/s"),
        Figure("redrive_cpu", "processor time of a redriven message", math.nan, "µs"),
        Figure("restore", "restore from an empty folder", math.nan, "timers/s", 350_000),
        Figure("lateness_p50", "lateness at a steady rate, p50", math.nan, "ms", 25, "at most"),
        Figure("lateness_p99", "lateness at a steady rate, p99", math.nan, "ms", 70, "at most"),
        Figure("early", "fired before they were due", math.nan, "messages", 0, "at most", exact=True),
        Figure("memory", "resident memory, many ÷ few pending", math.nan, "×", 2.0, "at most", exact=True),
        Figure("pending", "GET /pending with many pending, p99", math.nan, "ms", 5, "at most"),
        Figure("restart", "clean restart until the first fire", math.nan, "s", 1.0, "at most"),
        Figure("counts_p50", "the group's counts behind the truth, p50", math.nan, "ms"),
        Figure("counts_max", "the group's counts behind the truth, most", math.nan, "ms", 2_000, "at most"),
        Figure("asked", "GET /pending at full load, 64 origins, p99", math.nan, "ms", 25, "at most"),
        Figure("asked_loss", "throughput lost to 20 requests/s", math.nan, "%", 5, "at most"),
        Figure("listing", "page of 100 anywhere, p99", math.nan, "ms", 50, "at most"),
        Figure("cancel_p50", "cancel until its definite answer, p50", math.nan, "ms"),
        Figure("cancel_p99", "cancel until its definite answer, p99", math.nan, "ms", 1_000, "at most"),
        Figure("attack_none", "lateness without an attack, p99", math.nan, "ms"),
        *(
            Figure(f"attack_{name}", f"lateness during an attack, p99: {attack.what}", math.nan, "ms", 500, "at most")
            for name, attack in ATTACKS.items()
        ),
        Figure("order_store", "order per key: stored ÷ plain", math.nan, "×", 0.6),
        Figure(
            "order_store_cpu", "order per key: messages stored in a second of processor time ÷ plain", math.nan, "×"
        ),
        Figure("order_fire", "order per key: fired ÷ plain", math.nan, "×", 0.6),
        Figure("order_fire_cpu", "order per key: messages fired in a second of processor time ÷ plain", math.nan, "×"),
        Figure("large_memory", "very many pending: resident memory", math.nan, "MiB", 250, "at most", exact=True),
        Figure("large_growth", "very many ÷ few pending: resident memory", math.nan, "×", 1.3, "at most", exact=True),
        Figure("large_counts", "very many ÷ few pending: GET /pending, p50", math.nan, "×", 1.15, "at most"),
        Figure("large_page", "very many ÷ few pending: page of 100 anywhere, p50", math.nan, "×", 1.15, "at most"),
        Figure("large_store", "very many ÷ few pending: processor time, stored", math.nan, "×", 1.15, "at most"),
        Figure("large_fire", "very many ÷ few pending: processor time, fired", math.nan, "×", 1.15, "at most"),
        Figure("large_restart", "very many pending: clean restart until the first fire", math.nan, "s", 2, "at most"),
        Figure("large_restore", "very many pending: restore from an empty folder", math.nan, "timers/s", 350_000),
        Figure("spark_in", "Spark: ingested, warm", math.nan, "msg/s", 50_000),
        Figure("spark_out", "Spark: fired, warm", math.nan, "msg/s", 45_000),
        Figure("spark_idle", "Spark: idle micro-batch", math.nan, "ms", 300, "at most"),
        Figure("spark_start", "Spark: start to the first micro-batch's end", math.nan, "s", 12, "at most"),
        Figure("spark_batch", "Spark: micro-batch, many ÷ few pending", math.nan, "×", 1.25, "at most"),
        Figure("spark_lateness", "Spark: lateness at a steady rate, p99", math.nan, "ms", 1_000, "at most"),
        Figure("spark_early", "Spark: fired before they were due", math.nan, "messages", 0, "at most", exact=True),
        Figure("spark_memory", "Spark: memory, all processes", math.nan, "MiB", 2_560, "at most"),
        *(
            Figure(
                f"spark_{way}_{count}", f"Spark: {what}, {count} state partition{'s' * (count > 1)}", math.nan, "msg/s"
            )
            for count in (1, 2, 4)
            for way, what in (("in", "ingested"), ("out", "fired"))
        ),
    )
}
"""Every figure of the table with its target, not measured yet."""


def measured(name: str, value: float, note: str = "") -> Figure:
    """Return the figure of that name with its value."""
    return replace(TARGETS[name], measured=value, note=note)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, `share` from 0 to 1; NaN of nothing."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def rate_between(progress: Sequence[tuple[float, int]]) -> float:
    """Return the rate from the first to the last point that made progress, per unit of the first column.

    Args:
        progress: (time, total so far), in order of time. The total of the first point is not counted, because the start
            of its work is unknown.
    """
    points = [point for before, point in zip(((0.0, 0), *progress), progress, strict=False) if point[1] > before[1]]
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return math.nan
    (first_at, first), (last_at, last) = points[0], points[-1]
    return (last - first) / (last_at - first_at)


def spread(values: Sequence[float]) -> str:
    """Return the least and the largest value of a repeated figure."""
    return f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""


def percent(share: float) -> str:
    """Return a share as a percentage; empty for NaN."""
    return "" if math.isnan(share) else f"{share * 100:.1f} %"


def number(value: float) -> str:
    """Return a value with three significant digits."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(figures: Sequence[Figure]) -> str:
    """Return the table: what, target, measured, spread, steal, verdict, note."""
    return grid(
        ("figure", "target", "measured", "spread", "steal", "", "note"),
        [
            (
                figure.what,
                _target(figure),
                f"{number(figure.measured)} {figure.unit}".strip(),
                spread(figure.values),
                percent(figure.steal),
                figure.verdict,
                "; ".join(filter(None, (figure.failed or figure.noisy, figure.note))),
            )
            for figure in figures
        ],
    )


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≥' if figure.sense == 'at least' else '≤'} {number(figure.target)}"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned columns: the first and the last two to the left, the others to the right."""
    shown = Table(box=None, pad_edge=False, header_style=None)
    for place, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if 0 < place < len(headings) - 2 else "left")
    for row in rows:
        shown.add_row(*row)
    text = StringIO()
    Console(file=text, width=220, markup=False, highlight=False, emoji=False).print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def json_line(figures: Sequence[Figure], facts: Mapping[str, object]) -> str:
    """Return everything in one line of JSON; a value that was not measured is null, as is `met` of a noisy one."""
    shown = {
        figure.name: {
            "measured": _known(figure.measured),
            "values": [_known(value) for value in figure.values],
            "unit": figure.unit,
            "target": figure.target,
            "met": None if figure.verdict == "noisy" else figure.met,
            "steal": _known(figure.steal),
            "noisy": figure.noisy,
            "failed": figure.failed,
            "note": figure.note,
        }
        for figure in figures
    }
    missed = [figure.name for figure in figures if figure.verdict in {"MISS", "FAIL"}]
    noisy = [figure.name for figure in figures if figure.verdict == "noisy"]
    return json.dumps({"missed": missed, "noisy": noisy, **facts, "figures": shown}, ensure_ascii=False)


def _known(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
