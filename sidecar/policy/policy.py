"""The verdict on a request, in the order of its dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.contract.dialects.dialect import Check, Delays, Dialect
from sidecar.contract.dialects.registry import DIALECTS_BY_CODE
from sidecar.model import ATTEMPTS_MAX, DUE_MS_MAX, Drop, Reason, Rejection, Request, Schedule
from sidecar.policy.backoff import due_of
from sidecar.policy.config import PolicyConfig
from sidecar.policy.globs import Globs
from sidecar.policy.origins import OriginRules
from sidecar.policy.rules import ExceptionClass, ExceptionRules

_CACHED_TOPICS: Final = 8192
_SHOWN_CHARS_MAX: Final = 200

Verdict = Schedule | Drop | Rejection


class _Case(NamedTuple):
    """A request with everything that the checks read."""

    request: Request
    kind: ExceptionClass
    due_ms: int
    limit: int
    arrived_ms: int


_Check = Callable[[_Case], Verdict | None]


class Policy:
    """Decides what becomes of a request. Pure: the same request, times and settings give the same verdict."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._where = f" (policy of {config.name})" if config.name else ""
        # Not by their order in the settings: Helm does not keep it.
        longest_first = sorted(config.by_origin, key=lambda own: (-len(own.name), own.name))
        self._by_origin = [(Globs([own.name]), Policy(own)) for own in longest_first]
        self._of = lru_cache(_CACHED_TOPICS)(self._find)
        self._rules_of = {code: self._rules(dialect) for code, dialect in DIALECTS_BY_CODE.items()}
        self._exceptions = ExceptionRules(config.droppable, config.retriable, config.fatal)
        self._origins = OriginRules(
            config.origin_topics, {config.input_topic, config.dlq_topic, *config.internal_topics}
        )

    def origin_allowed(self, topic: str) -> bool:
        """Return whether messages may be fired to this topic."""
        return self._origins.problem(topic) is None

    def is_plain(self, topic: str) -> bool:
        """Return whether these rules, without those of single origins, allow deliveries to this topic."""
        return self.origin_allowed(topic) and (not self._by_origin or self._of(topic) is self)

    def is_retried(self, exception: str) -> bool:
        """Return whether no list of exceptions objects to a retry."""
        kind = self._exceptions.classify(exception)
        return kind.retriable and not kind.droppable and not kind.fatal

    def attempts_of(self, dialect: Dialect) -> tuple[tuple[int, ...], int]:
        """Return the delays by attempt, in milliseconds, and the attempts allowed."""
        return self._config.delays_of(dialect.delays), self._config.attempts_limit(dialect.delays)

    @property
    def max_delay_ms(self) -> int:
        """The setting MAX_DELAY."""
        return self._config.max_delay_ms

    def delay_problem(self, due_ms: int, arrived_ms: int) -> str | None:
        """Return why a due time is too far ahead, for a person; None when it is not."""
        if due_ms - arrived_ms <= self._config.max_delay_ms and due_ms <= DUE_MS_MAX:
            return None
        return (
            f"due {due_ms} is {due_ms - arrived_ms} ms after arrival: allowed are {self._config.max_delay_ms} ms"
            f" (MAX_DELAY) and a due time up to {DUE_MS_MAX}"
        )

    def decide(self, request: Request, timestamp_ms: int, arrived_ms: int) -> Verdict:
        """Return the verdict.

        Args:
            request: The request, as its dialect parsed it.
            timestamp_ms: The record's; NO_TIMESTAMP when it has none.
            arrived_ms: When the record was ingested.
        """
        dialect, origin, due_ms, _, _, attempt, max_attempts, exception, _, _, _ = request
        if self._by_origin and (own := self._of(origin)) is not self:
            return own.decide(request, timestamp_ms, arrived_ms)
        delays_ms, limit, checks = self._rules_of[dialect]
        if max_attempts is not None and max_attempts < limit:
            limit = max_attempts
        if due_ms is None:
            due_ms = due_of(request, delays_ms, timestamp_ms=timestamp_ms, arrived_ms=arrived_ms)
        kind = self._exceptions.classify(exception)
        droppable, fatal, _, retriable = kind
        # In the hot path: to what no check objects, their order means nothing.
        if (
            not retriable
            or droppable
            or fatal
            or attempt >= limit
            or self._origins.problem(origin)
            or self.delay_problem(due_ms, arrived_ms)
        ):
            case = _Case(request, kind, due_ms, limit, arrived_ms)
            for check in checks:
                if (verdict := check(case)) is not None:
                    return verdict
        return tuple.__new__(Schedule, (due_ms, limit))  # twice as quick as its own constructor

    def _rules(self, dialect: Dialect) -> tuple[tuple[int, ...], int, tuple[_Check, ...]]:
        """Return the delays, the attempts allowed and the checks, in their order, of a dialect."""
        delays = dialect.delays
        return (
            self._config.delays_of(delays),
            self._config.attempts_limit(delays),
            tuple(self._checks[check] for check in dialect.checks),
        )

    def _find(self, origin: str) -> Policy:
        """Return the policy for one origin: that of its name, else of the longest glob that matches, else this one."""
        named = (own for globs, own in self._by_origin if globs.names(origin))
        matching = (own for globs, own in self._by_origin if globs.matches(origin))
        return next(named, None) or next(matching, self)

    def _droppable(self, case: _Case) -> Drop | None:
        if not case.kind.droppable:
            return None
        return Drop(f"exception {_shown(case.request.exception)} is on the list DROPPABLE_EXCEPTION{self._where}")

    def _dlq_as_origin(self, case: _Case) -> Drop | None:
        request = case.request
        if request.origin != self._config.dlq_topic:
            return None
        return Drop(f"origin {request.origin} is the DLQ, which profile {DIALECTS_BY_CODE[request.dialect].name} drops")

    def _not_allowed(self, case: _Case) -> Rejection | None:
        problem = self._origins.problem(case.request.origin)
        return Rejection(Reason.ORIGIN_NOT_ALLOWED, problem) if problem else None

    def _too_late(self, case: _Case) -> Rejection | None:
        problem = self.delay_problem(case.due_ms, case.arrived_ms)
        return Rejection(Reason.DELAY_OUT_OF_RANGE, problem) if problem else None

    def _retriable(self, case: _Case) -> Schedule | None:
        return Schedule(case.due_ms, case.limit) if case.kind.listed and case.request.attempt < case.limit else None

    def _exhausted(self, case: _Case) -> Rejection | None:
        request, limit = case.request, case.limit
        if request.attempt < limit:
            return None
        delays = DIALECTS_BY_CODE[request.dialect].delays
        if limit < self._rules_of[request.dialect][1]:
            source = "by the message's own headers"
        elif delays is Delays.LIST:
            source = f"by MAX_ATTEMPTS, or else by the number of DELAYS, never more than {ATTEMPTS_MAX}{self._where}"
        else:
            source = f"one for each of {delays.value}{self._where}"
        return Rejection(
            Reason.ATTEMPTS_EXHAUSTED, f"{request.attempt} retries have been made and {limit} are allowed, {source}"
        )

    def _fatal(self, case: _Case) -> Rejection | None:
        if not case.kind.fatal:
            return None
        detail = f"exception {_shown(case.request.exception)} is on the list FATAL_EXCEPTION{self._where}"
        return Rejection(Reason.FATAL, detail)

    def _unknown(self, case: _Case) -> Rejection | None:
        if case.kind.retriable:
            return None
        return Rejection(
            Reason.UNKNOWN_EXCEPTION,
            f"exception {_shown(case.request.exception)} is on no list{self._where}: add it to RETRIABLE_EXCEPTION if "
            "it should be retried",
        )

    @property
    def _checks(self) -> Mapping[Check, _Check]:
        return {
            Check.DROPPABLE: self._droppable,
            Check.DLQ_AS_ORIGIN: self._dlq_as_origin,
            Check.ORIGIN: self._not_allowed,
            Check.DELAY: self._too_late,
            Check.RETRIABLE: self._retriable,
            Check.EXHAUSTED: self._exhausted,
            Check.FATAL: self._fatal,
            Check.UNKNOWN: self._unknown,
        }


def _shown(exception: str | None) -> str:
    """Return the name, escaped and cut to a length that fits a log line."""
    if exception is None:
        return "(none named)"
    text = repr(exception[:_SHOWN_CHARS_MAX])
    return text if len(exception) <= _SHOWN_CHARS_MAX else f"{text}… ({len(exception)} characters)"
