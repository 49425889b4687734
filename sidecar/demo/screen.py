"""The output of the demo: a live view on a terminal, plain lines elsewhere, and the ledger at the end."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sidecar.clock import SystemClock
from sidecar.demo.ledger import Lateness, Ledger
from sidecar.demo.process import Figures

_LINE_EVERY_S = 2.0


class Moment(NamedTuple):
    """The state of the demo at one instant."""

    elapsed_s: float
    sent: int
    to_send: int
    handled: int
    failed: int
    figures: Figures
    trips: int
    """The number of records that the retry topic has at the end."""
    to_fire: int


class Screen:
    """Shows the demo; a context, which restores the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._clock = SystemClock()
        self._start_s = self._clock.monotonic_s()
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.freeze()

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._start_s

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        self._console.print(Text.assemble((f"{self.elapsed_s:5.1f} s  ", "dim"), text), soft_wrap=True)

    def show(self, moment: Moment) -> None:
        """Show the state of the demo."""
        if not self._console.is_terminal:
            if moment.elapsed_s >= self._next_line_s:
                self._next_line_s = moment.elapsed_s + _LINE_EVERY_S
                self.say(line(moment))
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(picture(moment), refresh=True)

    def freeze(self) -> None:
        """Keep the last picture and continue below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def report(self, ledger: Ledger) -> None:
        """Print the ledger and its verdict."""
        self._console.print()
        self._console.print(ledger_table(ledger))
        self._console.print()
        if ledger.holds:
            text, style = verdict(ledger.lateness)
            self._console.print(text, style=style)
        for problem in ledger.problems:
            self._console.print(Text(f"WRONG: {problem}", "bold red"), soft_wrap=True)


def line(moment: Moment) -> str:
    """Return the moment as one line."""
    figures = moment.figures
    return (
        f"sent {moment.sent:,} of {moment.to_send:,}, pending {figures.pending:,}, "
        f"fired {figures.fired:,} of {moment.to_fire:,}, late p50 {_late(figures.lateness_p50_ms)} "
        f"p99 {_late(figures.lateness_p99_ms)}, dropped {figures.dropped:,}, "
        f"DLQ {sum(figures.dead_lettered.values()):,}"
    )


def picture(moment: Moment) -> RenderableType:
    """Return the moment as a panel."""
    figures = moment.figures
    bars = Table.grid(padding=(0, 2))
    for name, done, total in (
        ("sent", moment.sent, moment.to_send),
        ("reached the sidecar", figures.received, moment.trips),
        ("fired back", figures.fired, moment.to_fire),
    ):
        bars.add_row(
            name,
            ProgressBar(max(1, total), done, width=36, complete_style="cyan", finished_style="green"),
            f"{done:,} of {total:,}",
        )
    numbers = Table.grid(padding=(0, 2))
    for name, value, style in (
        ("pending", f"{figures.pending:,}", "bold cyan"),
        ("lateness", f"p50 {_late(figures.lateness_p50_ms)}   p99 {_late(figures.lateness_p99_ms)}", ""),
        ("application", f"handled {moment.handled:,}   failed {moment.failed:,}", ""),
        ("dropped", f"{figures.dropped:,}", ""),
    ):
        numbers.add_row(name, Text(value, style))
    reasons = Table.grid(padding=(0, 2))
    for reason, count in sorted(figures.dead_lettered.items(), key=lambda item: -item[1]):
        reasons.add_row(Text(reason, "yellow"), f"{count:,}")
    below = Table.grid(padding=(0, 6))
    dead = Text(f"DLQ {sum(figures.dead_lettered.values()):,}", "bold")
    below.add_row(numbers, Group(dead, reasons))
    return Panel(Group(bars, "", below), title=f"retry-sidecar demo, {moment.elapsed_s:.0f} s", title_align="left")


def ledger_table(ledger: Ledger) -> RenderableType:
    """Return the ledger as a table."""
    table = Table(
        title="Ledger, read from the topics with isolation.level=read_committed",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in ledger.dead_lettered.items())
    late = ledger.lateness
    table.add_row("in", f"{ledger.entered:,}", "records on the retry topic")
    table.add_row("= fired", f"{ledger.fired:,}", "back on their origin topics")
    table.add_row("+ dead-lettered", f"{sum(ledger.dead_lettered.values()):,}", reasons)
    table.add_row("+ dropped", f"{ledger.dropped:,}", "leave no record: known from their plan")
    said = "" if ledger.reported_pending is None else f"; GET /pending says {ledger.reported_pending:,}"
    table.add_row("+ pending", f"{ledger.pending:,}", f"not due yet{said}")
    for name, which in (
        ("lost", ledger.lost),
        ("twice", ledger.twice),
        ("early", ledger.early),
        ("altered", ledger.altered),
        ("not as planned", ledger.unplanned),
    ):
        table.add_row(name, Text(f"{len(which):,}", "bold red" if which else "green"), "")
    if late is not None:
        table.add_row("lateness p50", f"{late.p50_ms:,} ms", "origin's LogAppendTime minus due time")
        table.add_row("lateness p99", f"{late.p99_ms:,} ms", f"greatest {late.max_ms:,} ms")
    return table


def verdict(late: Lateness | None) -> tuple[str, str]:
    """Return the verdict on a ledger that holds, and its style."""
    if late is None or late.in_time:
        return "The ledger holds: every message came out once, in time and unchanged.", "green"
    said = f"one in a hundred more than {late.p99_ms / 1000:.1f} s after its due time"
    return f"The ledger holds: every message came out once and unchanged, but LATE: {said}.", "yellow"


def _late(bound_ms: float | None) -> str:
    return "-" if bound_ms is None else f"≤ {bound_ms:,.0f} ms"
