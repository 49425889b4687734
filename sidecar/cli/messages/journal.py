"""The journal of a bulk command: its order and its progress, as append-only lines of JSON.

The first line has the order of the run. Each further line has what was done since the line before, and the cursor
behind which nothing is done yet. A last line that was cut off does not count.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import platformdirs

from sidecar.cli.messages.filters import Filter
from sidecar.contract.control import ControlKind
from sidecar.errors import CommandFailed

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Order:
    """The task of a run; fixed at its start."""

    kind: ControlKind
    wanted: Filter
    due_ms: int | None
    """The new due time, for a reschedule."""
    upto: Mapping[int, int]
    """By partition, the greatest offset of the messages that it acts on: what came later is not meant."""
    total: int
    """The number of messages that matched at the start."""
    group: str | None
    """Application and retry topic; None for a run by --url."""


@dataclass(slots=True)
class Progress:
    """The progress of a run."""

    round: int = 0
    """The number of complete passes over the list."""
    cursor: str | None = None
    acted: int = 0
    """Messages acted on in this round."""
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    """Timer ids that were refused, with the reason."""
    finished: bool = False


class Journal:
    """One run's file."""

    def __init__(self, path: Path, order: Order, progress: Progress) -> None:
        self.path = path
        self.order = order
        self.progress = progress
        self._written_outcomes = Counter(progress.outcomes)
        self._written_refused = len(progress.refused)

    @classmethod
    def begin(cls, path: Path, order: Order) -> Self:
        """Make the file. Raises CommandFailed when it exists or cannot be written."""
        journal = cls(path, order, Progress())
        head = {
            "version": VERSION,
            "command": order.kind.value,
            "filter": order.wanted.to_json(),
            "due_ms": order.due_ms,
            "upto": {str(partition): offset for partition, offset in order.upto.items()},
            "total": order.total,
            "group": order.group,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(head) + "\n")
        except FileExistsError:
            raise CommandFailed(f"--journal: {path} exists: continue it with --resume, or name another file") from None
        except OSError as error:
            raise CommandFailed(f"--journal: {path}: {error.strerror or error}") from error
        return journal

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the journal of a run that has begun. Raises CommandFailed when the file is not a journal."""
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            head = json.loads(lines[0])
            if head["version"] != VERSION:
                raise CommandFailed(f"--resume: {path} is of another version of this program")
            order = Order(
                ControlKind(head["command"]),
                Filter.from_json(head["filter"]),
                head["due_ms"],
                {int(partition): offset for partition, offset in head["upto"].items()},
                head["total"],
                head["group"],
            )
            progress = Progress()
            for line in lines[1:]:
                _take_in(progress, line)
        except OSError as error:
            raise CommandFailed(f"--resume: {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise CommandFailed(f"--resume: {path} is not the journal of a run") from error
        return cls(path, order, progress)

    def write(self) -> None:
        """Add what was done since the last call. Raises CommandFailed."""
        progress = self.progress
        refused = list(progress.refused.items())[self._written_refused :]
        line = {
            "round": progress.round,
            "cursor": progress.cursor,
            "acted": progress.acted,
            "outcomes": dict(progress.outcomes - self._written_outcomes),
            "refused": dict(refused),
            "finished": progress.finished,
        }
        try:
            with self.path.open("a", encoding="utf-8") as file:
                # A line that was cut off ends here and not within this one.
                file.write("\n" + json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CommandFailed(f"journal {self.path}: {error.strerror or error}") from error
        self._written_outcomes = Counter(progress.outcomes)
        self._written_refused = len(progress.refused)


def _take_in(progress: Progress, line: str) -> None:
    try:
        step: dict[str, Any] = json.loads(line)
    except ValueError:
        return  # empty, or cut off
    progress.round = step["round"]
    progress.cursor = step["cursor"]
    progress.acted = step["acted"]
    progress.outcomes.update(step["outcomes"])
    progress.refused.update(step["refused"])
    progress.finished = step["finished"]


def new_path(kind: ControlKind, now_ms: int) -> Path:
    """Return where the journal of a new run lies unless it is named."""
    began = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%d-%H%M%S")
    folder = platformdirs.user_state_path("retry-sidecar") / "runs"
    return folder / f"{kind.value}-{began}-{secrets.token_hex(2)}.jsonl"
