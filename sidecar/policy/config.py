"""The settings that the policy needs, checked for contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.contract.dialects.dialect import Delays
from sidecar.errors import SettingsInvalid
from sidecar.model import ATTEMPTS_MAX

_MINUTE_MS: Final = 60_000
PER_SECOND_MIN: Final = 0.001
PER_SECOND_MAX: Final = 1_000_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """What decides about a request.

    Raises:
        SettingsInvalid: a value is impossible or two contradict each other.
    """

    input_topic: str = "retry"
    dlq_topic: str = "dlq"
    """Where its dead letters go."""
    dlq_topics: frozenset[str] = frozenset()
    """Every DLQ, of all policies: none is ever an origin."""
    internal_topics: frozenset[str] = frozenset()
    """Changelog and status topic: never an origin, like input and DLQ."""
    origin_topics: tuple[str, ...] = ("*",)
    delays_ms: tuple[int, ...] = tuple(_MINUTE_MS * minutes for minutes in (5, 5, 30, 30, 30, 60))
    max_attempts: int | None = None
    """None: the number of delays."""
    max_delay_ms: int = 365 * _DAY_MS
    jitter: float = 0.0
    """Most share of a delay of ours that is added to it, by chance."""
    max_age_ms: int | None = None
    """Longest time from the first failure to a retry; None: any."""
    droppable: tuple[str, ...] = ()
    retriable: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()
    ibm_delays_ms: tuple[int, ...] = (20_000, 40_000, 60_000)
    """FIRST_, SECOND_ and THIRD_DELAY_MS; empty when no dialect that uses them is accepted."""
    by_origin: tuple[PolicyConfig, ...] = ()
    """The configurations of single origins: that of the topic's own name, else of the longest matching glob."""
    max_per_second: float | None = None
    """Most messages a second that an origin gets; None: any number."""
    order_by_key: bool = False
    """Whether a message waits for earlier ones of its origin and key."""
    by_name: tuple[PolicyConfig, ...] = ()
    """Those that a message or an exception can choose by their names."""
    by_exception: tuple[tuple[str, str], ...] = ()
    """Names or globs of exceptions, each with the name of the policy that it chooses."""
    name: str = ""
    """The topic, glob or name that this is for; empty: for all that have none of their own."""

    def delays_of(self, delays: Delays) -> tuple[int, ...]:
        """Return the delays by attempt, in milliseconds."""
        return self.delays_ms if delays is Delays.LIST else self.ibm_delays_ms

    def attempts_limit(self, delays: Delays) -> int:
        """Return the attempts allowed with these delays when the message names no limit."""
        if delays is Delays.LIST and self.max_attempts is not None:
            return min(self.max_attempts, ATTEMPTS_MAX)
        return min(len(self.delays_of(delays)), ATTEMPTS_MAX)

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise SettingsInvalid(problems)

    def _problems(self) -> Iterator[str]:
        if not self.delays_ms:
            yield "DELAYS is empty: allowed is at least one delay"
        for delays in Delays:
            for delay_ms in self.delays_of(delays):
                if not 0 <= delay_ms <= self.max_delay_ms:
                    most = f"MAX_DELAY, which is {self.max_delay_ms} ms"
                    yield f"{delays.value} has {delay_ms} ms: allowed are 0 to {most}"
        longest_ms = max((*self.delays_ms, *self.ibm_delays_ms), default=0)
        if not 0 <= self.jitter <= 1 or 0 <= longest_ms <= self.max_delay_ms < longest_ms * (1 + self.jitter):
            yield f"JITTER={self.jitter}: allowed are 0 to 1, and no delay with it above MAX_DELAY={self.max_delay_ms}"
        if self.max_age_ms is not None and self.max_age_ms < 1:
            yield f"MAX_AGE={self.max_age_ms}: allowed are 1 ms and more"
        if self.max_per_second is not None and not PER_SECOND_MIN <= self.max_per_second <= PER_SECOND_MAX:
            yield f"MAX_PER_SECOND={self.max_per_second}: allowed are {PER_SECOND_MIN} to {PER_SECOND_MAX}"
        if self.max_attempts is not None and not 1 <= self.max_attempts <= ATTEMPTS_MAX:
            yield f"MAX_ATTEMPTS={self.max_attempts}: allowed are 1 to {ATTEMPTS_MAX}"
        if self.dlq_topic == self.input_topic or self.dlq_topic in self.internal_topics:
            yield f"DLQ_TOPIC={self.dlq_topic}: allowed is another topic than INPUT_TOPIC and the internal topics"
