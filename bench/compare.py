"""Two versions of the sidecar, measured in alternation on one broker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.figures import Figure, grid, number, percent, spread
from bench.runs import Act, Run, attempt, wants_another
from bench.sidecar_process import TREE
from bench.waiting import say


@contextmanager
def checked_out(ref: str) -> Iterator[Path]:
    """Yield the sources of a commit, with its hot path compiled where it has one and this environment can.

    They run on the libraries of this environment.

    Raises:
        subprocess.CalledProcessError: There is no such commit, or git cannot check it out.
    """
    with tempfile.TemporaryDirectory(prefix="retry-sidecar-ref-") as folder:
        tree = Path(folder, "tree")
        git("worktree", "add", "--detach", str(tree), ref)
        try:
            say(f"{ref}: {git('-C', str(tree), 'log', '-1', '--format=%h %s')}")
            if (tree / "hatch_build.py").exists():
                build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
                subprocess.run(build, cwd=tree, check=True, stdout=sys.stderr)
            say(f"{ref}: {kind(tree)}; here: {kind(TREE)}")
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> str:
    """Return the output of git in this repository."""
    return subprocess.run(["git", *arguments], cwd=TREE, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def kind(tree: Path) -> str:
    """Return what `retry-sidecar version` says of the sources in a folder, in one line."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "sidecar", "version"]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return ", ".join(done.stdout.split("\n")[:-1])


def compared(measurements: Sequence[tuple[Sequence[str], Act, Act]], wanted: int) -> str:
    """Measure each in pairs, the former version first in every other one; return the table.

    Args:
        measurements: The names of the figures, how the former version is measured, and how this one is.
        wanted: Pairs that count.
    """
    rows = []
    for names, former, present in measurements:
        pairs: list[tuple[Run, Run]] = []
        while wants_another([worse(*pair) for pair in pairs], wanted):
            if len(pairs) % 2:
                new, old = attempt(names, present), attempt(names, former)
            else:
                old, new = attempt(names, former), attempt(names, present)
            say(f"{names[0]}: {percent(old.steal)} and {percent(new.steal)} steal")
            pairs.append((old, new))
            if old.failed or new.failed:
                break
        rows += [row(name, pairs, wanted) for name in names]
    return grid(("figure", "former", "present", "present ÷ former", "spread", "steal", "", "note"), rows)


def worse(old: Run, new: Run) -> Run:
    """Return a pair as one run: it counts when both do."""
    return replace(new, steal=max(old.steal, new.steal), late=old.late or new.late)


def row(name: str, pairs: Sequence[tuple[Run, Run]], wanted: int) -> tuple[str, ...]:
    """Return the row of a figure: medians of the pairs that count, or of all pairs, and then noisy."""
    counting = [pair for pair in pairs if worse(*pair).counts]
    enough = len(counting) >= wanted
    values = [
        (old, new)
        for pair in (counting if enough else pairs)
        for old, new in [(_value(name, pair[0]), _value(name, pair[1]))]
        if old is not None and new is not None and not (old.failed or new.failed)
    ]
    steal = max((run.steal for pair in pairs for run in pair), default=0.0)
    why = next((text for pair in pairs for run in pair for text in _troubles(name, run)), "")
    if not values:
        return name, "-", "-", "-", "", percent(steal), "not measured", why
    ratios = [new.measured / old.measured for old, new in values if old.measured]
    unit = values[0][1].unit
    return (
        values[0][1].what,
        f"{number(median(old.measured for old, _ in values))} {unit}".strip(),
        f"{number(median(new.measured for _, new in values))} {unit}".strip(),
        number(median(ratios)) if ratios else "-",
        spread(sorted(ratios)),
        percent(steal),
        "" if enough else "noisy",
        why,
    )


def _value(name: str, run: Run) -> Figure | None:
    return next((figure for figure in run.figures if figure.name == name), None)


def _troubles(name: str, run: Run) -> Iterator[str]:
    if run.late:
        yield run.late
    yield from (figure.failed for figure in run.figures if figure.name == name and figure.failed)
