"""The settings that the policy needs, checked for what they mean together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.errors import SettingsInvalid
from sidecar.model import ATTEMPTS_MAX

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """What decides about a request.

    Raises:
        SettingsInvalid: a value is impossible or two contradict each other.
    """

    input_topic: str = "retry"
    dlq_topic: str = "dlq"
    internal_topics: frozenset[str] = frozenset()
    """Changelog and status topic: never an origin, like input and DLQ."""
    origin_topics: tuple[str, ...] = ("*",)
    delays_ms: tuple[int, ...] = tuple(_MINUTE_MS * minutes for minutes in (5, 5, 30, 30, 30, 60))
    max_attempts: int | None = None
    """None: the number of delays."""
    max_delay_ms: int = 365 * _DAY_MS
    droppable: tuple[str, ...] = ()
    retriable: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()
    ibm_delays_ms: tuple[int, ...] = (20_000, 40_000, 60_000)
    """Empty when profile `ibm` is not accepted."""
    by_origin: tuple[PolicyConfig, ...] = ()
    """What decides for some origins instead: the one of the topic's own name, else of the longest glob that matches."""
    name: str = ""
    """The topic or glob that this is for; empty: for all that have none of their own."""

    @property
    def attempts_limit(self) -> int:
        """Return the attempts that profile `native` allows when a message names no limit of its own."""
        return min(len(self.delays_ms) if self.max_attempts is None else self.max_attempts, ATTEMPTS_MAX)

    @property
    def ibm_attempts_limit(self) -> int:
        """Return the attempts that profile `ibm` allows: one for each of its delays."""
        return min(len(self.ibm_delays_ms), ATTEMPTS_MAX)

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise SettingsInvalid(problems)

    def _problems(self) -> Iterator[str]:
        if not self.delays_ms:
            yield "DELAYS is empty: allowed is at least one delay"
        for setting, delays_ms in (("DELAYS", self.delays_ms), ("FIRST/SECOND/THIRD_DELAY_MS", self.ibm_delays_ms)):
            for delay_ms in delays_ms:
                if not 0 <= delay_ms <= self.max_delay_ms:
                    yield f"{setting} has {delay_ms} ms: allowed are 0 to MAX_DELAY, which is {self.max_delay_ms} ms"
        if self.max_attempts is not None and not 1 <= self.max_attempts <= ATTEMPTS_MAX:
            yield f"MAX_ATTEMPTS={self.max_attempts}: allowed are 1 to {ATTEMPTS_MAX}"
        if self.input_topic == self.dlq_topic:
            yield f"DLQ_TOPIC={self.dlq_topic}: allowed is another topic than INPUT_TOPIC, which is the same"
