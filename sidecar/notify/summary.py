"""What a notification says of the dead letters of an interval: counts and a few samples, without payload. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sidecar.contract.dead_letter import DeadLetter
from sidecar.model import Headers

NAMES_MAX: Final = 1_000
"""Most origins, exceptions or groups that are counted by name in one interval."""
SHOWN_MAX: Final = 20
"""Most of them in a notification: those with the most dead letters."""
SAMPLES_MAX: Final = 10
SAMPLES_OF_A_REASON_MAX: Final = 3
NAME_CHARS_MAX: Final = 200
TEXT_CHARS_MAX: Final = 1_000
OTHERS: Final = "(others)"

FIELDS: Final = (
    *("app_id", "instance", "dlq_topic", "from", "until", "from_ms", "until_ms", "count", "examined", "summary"),
    *("by_reason", "by_origin", "by_exception", "by_group", "samples"),
)
"""What a template can name."""


class Source(NamedTuple):
    """Who announces, and of which topic."""

    app_id: str
    instance: str
    dlq_topic: str


class Summary:
    """Counts dead letters; its size is bounded."""

    def __init__(self) -> None:
        self.by_reason = Counter[str]()
        """Of all dead letters."""
        self.examined = 0
        """Dead letters of which origin, exception and group are counted; the others came too fast."""
        self._by_origin = Counter[str]()
        self._by_exception = Counter[str]()
        self._by_group = Counter[str]()
        self._samples: list[dict[str, Any]] = []
        self._sampled = Counter[str]()

    @property
    def count(self) -> int:
        """The number of dead letters."""
        return self.by_reason.total()

    def examine(self, headers: Headers) -> None:
        """Count a dead letter by origin, exception and group, and keep it as a sample while there is room."""
        dead_letter = DeadLetter(headers)
        self.examined += 1
        _add(self._by_origin, dead_letter.origin)
        _add(self._by_exception, dead_letter.exception)
        _add(self._by_group, dead_letter.group)
        if len(self._samples) < SAMPLES_MAX and self._sampled[dead_letter.reason] < SAMPLES_OF_A_REASON_MAX:
            self._sampled[dead_letter.reason] += 1
            self._samples.append(_sample(dead_letter))

    def fields(self, source: Source, from_text: str, until_text: str, from_ms: int, until_ms: int) -> dict[str, Any]:
        """Return the value of each of FIELDS.

        Args:
            source: Who announces.
            from_text: When the first of them was committed, ISO 8601.
            until_text: The end of the interval.
            from_ms: As `from_text`.
            until_ms: As `until_text`.
        """
        named = {
            "by_reason": _most(self.by_reason),
            "by_origin": _most(self._by_origin),
            "by_exception": _most(self._by_exception),
            "by_group": _most(self._by_group),
        }
        return {
            **source._asdict(),
            "from": from_text,
            "until": until_text,
            "from_ms": from_ms,
            "until_ms": until_ms,
            "count": self.count,
            "examined": self.examined,
            "summary": _text(self.count, source.dlq_topic, named),
            **named,
            "samples": self._samples,
        }


def _add(counts: Counter[str], name: str) -> None:
    name = name[:NAME_CHARS_MAX]
    counts[name if name in counts or len(counts) < NAMES_MAX else OTHERS] += 1


def _most(counts: Counter[str]) -> dict[str, int]:
    """Return the largest counts, and the sum of all others."""
    shown = dict(counts.most_common(SHOWN_MAX))
    if left := counts.total() - sum(shown.values()):
        shown[OTHERS] = shown.get(OTHERS, 0) + left
    return shown


def _sample(dead_letter: DeadLetter) -> dict[str, Any]:
    came_from = dead_letter.came_from
    return {
        "reason": dead_letter.reason,
        "detail": dead_letter.detail,
        "origin": dead_letter.origin[:NAME_CHARS_MAX],
        "exception": dead_letter.exception[:NAME_CHARS_MAX],
        "group": dead_letter.group[:NAME_CHARS_MAX],
        "attempt": dead_letter.attempt,
        "redrives": dead_letter.redrives,
        "timestamp_ms": dead_letter.timestamp_ms,
        "came_from": None if came_from is None else came_from._asdict(),
    }


def _text(count: int, dlq_topic: str, named: Mapping[str, Mapping[str, int]]) -> str:
    """Return one line for people, such as `3 dead letters on dlq; reasons: fatal 2, too-large 1; origins: orders 3`."""
    parts = [f"{count:,} dead letter{'' if count == 1 else 's'} on {dlq_topic}"]
    for kind, counts in named.items():
        if shown := [f"{name} {number:,}" for name, number in counts.items() if name]:
            parts.append(f"{kind.removeprefix('by_')}s: {', '.join(shown)}")
    text = "; ".join(parts)
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"
