"""Output of commands for people: untrusted text cannot control the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sidecar.errors import printable

WIDTH: Final = 600
"""Columns where the output is no terminal: names stay whole."""


class _Terminal(Console):
    """Writes no control character but its own: whatever is printed comes through here."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            escaped = text if control else "\n".join(map(printable, text.split("\n")))
            yield Segment(escaped, style, control)


def console(*, stderr: bool = False) -> Console:
    """Return where a command prints; names stay whole where that is no terminal, and are never read as markup."""
    made = _Terminal(stderr=stderr, highlight=False, emoji=False, markup=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = WIDTH
    return made


def print_json(answer: Mapping[str, object]) -> None:
    """Print one JSON object as one line: all output of `--json` has this form."""
    click.echo(json.dumps(answer))


def say(text: str, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(text), err=err)
