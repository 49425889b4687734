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

    @property
    def met(self) -> bool:
        """Whether the target is met; true without one. NaN meets none."""
        if self.target is None:
            return True
        return self.measured >= self.target if self.sense == "at least" else self.measured <= self.target


TARGETS: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("relay", "transactional relay, the yardstick", math.nan, "msg/s"),
        Figure("store", "store ÷ relay", math.nan, "×", 0.70),
        Figure("fire", "fire ÷ relay", math.nan, "×", 1.0),
        Figure("both", "store and fire at once, in = out ÷ relay", math.nan, "×", 0.35),
        Figure("restore", "restore from an empty folder", math.nan, "timers/s", 90_000),
        Figure("lateness_p50", "lateness at a steady rate, p50", math.nan, "ms", 60, "at most"),
        Figure("lateness_p99", "lateness at a steady rate, p99", math.nan, "ms", 150, "at most"),
        Figure("early", "fired before they were due", math.nan, "messages", 0, "at most"),
        Figure("memory", "resident memory, many ÷ few pending", math.nan, "×", 2.0, "at most"),
        Figure("pending", "GET /pending with many pending, p99", math.nan, "ms", 20, "at most"),
        Figure("restart", "clean restart until the first fire", math.nan, "s", 5, "at most"),
        Figure("counts_p50", "the group's counts behind the truth, p50", math.nan, "ms"),
        Figure("counts_max", "the group's counts behind the truth, most", math.nan, "ms", 2_000, "at most"),
        Figure("asked", "GET /pending at full load, 64 origins, p99", math.nan, "ms", 20, "at most"),
        Figure("asked_loss", "throughput lost to 20 requests/s", math.nan, "%", 5, "at most"),
        Figure("listing", "page of 100 anywhere, p99", math.nan, "ms", 50, "at most"),
        Figure("cancel_p50", "cancel until its definite answer, p50", math.nan, "ms"),
        Figure("cancel_p99", "cancel until its definite answer, p99", math.nan, "ms", 1_000, "at most"),
        Figure("spark_in", "Spark: ingested, warm", math.nan, "msg/s", 25_000),
        Figure("spark_out", "Spark: fired, warm", math.nan, "msg/s", 20_000),
        Figure("spark_idle", "Spark: idle micro-batch", math.nan, "ms", 700, "at most"),
        Figure("spark_batch", "Spark: micro-batch, many ÷ few pending", math.nan, "×", 1.25, "at most"),
        Figure("spark_lateness", "Spark: lateness at a steady rate, p99", math.nan, "ms", 3_000, "at most"),
        Figure("spark_early", "Spark: fired before they were due", math.nan, "messages", 0, "at most"),
        Figure("spark_memory", "Spark: memory, all processes", math.nan, "MiB"),
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
    """Return all values of a repeated figure, for its note."""
    return "runs " + ", ".join(number(value) for value in values) if len(values) > 1 else ""


def number(value: float) -> str:
    """Return a value with three significant digits."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(figures: Sequence[Figure]) -> str:
    """Return the table: what, target, measured, verdict, note."""
    grid = Table(box=None, pad_edge=False, header_style=None)
    grid.add_column("figure")
    grid.add_column("target", justify="right")
    grid.add_column("measured", justify="right")
    grid.add_column("")
    grid.add_column("note")
    for figure in figures:
        target = (
            "" if figure.target is None else f"{'≥' if figure.sense == 'at least' else '≤'} {number(figure.target)}"
        )
        verdict = "" if figure.target is None else "pass" if figure.met else "MISS"
        shown = f"{number(figure.measured)} {figure.unit}".strip()
        grid.add_row(figure.what, target, shown, verdict, figure.note)
    text = StringIO()
    Console(file=text, width=200, markup=False, highlight=False, emoji=False).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def json_line(figures: Sequence[Figure], facts: Mapping[str, object]) -> str:
    """Return everything in one line of JSON; a value that was not measured is null."""
    shown = {
        figure.name: {
            "measured": round(figure.measured, 4) if math.isfinite(figure.measured) else None,
            "unit": figure.unit,
            "target": figure.target,
            "met": figure.met,
            "note": figure.note,
        }
        for figure in figures
    }
    return json.dumps({"met": all(figure.met for figure in figures), **facts, "figures": shown}, ensure_ascii=False)
