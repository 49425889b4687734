"""The verdict on a request, in the contract's order."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sidecar.model import ATTEMPTS_MAX, DUE_MS_MAX, Drop, Reason, Rejection, Request, Schedule
from sidecar.policy.backoff import due_of
from sidecar.policy.config import PolicyConfig
from sidecar.policy.globs import Globs
from sidecar.policy.origins import OriginRules
from sidecar.policy.rules import ExceptionRules

IBM: Final = 2
"""The code of dialect `ibm`."""

_CACHED_TOPICS: Final = 8192
_SHOWN_CHARS_MAX: Final = 200

Verdict = Schedule | Drop | Rejection


class Policy:
    """Decides what becomes of a request. Pure: the same request, times and settings give the same verdict."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._where = f" (policy of {config.name})" if config.name else ""
        # Not by their order in the settings: Helm does not keep it.
        longest_first = sorted(config.by_origin, key=lambda own: (-len(own.name), own.name))
        self._by_origin = [(Globs([own.name]), Policy(own)) for own in longest_first]
        self._of = lru_cache(_CACHED_TOPICS)(self._find)
        self._limit = config.attempts_limit
        self._ibm_limit = config.ibm_attempts_limit
        self._exceptions = ExceptionRules(config.droppable, config.retriable, config.fatal)
        self._origins = OriginRules(
            config.origin_topics, {config.input_topic, config.dlq_topic, *config.internal_topics}
        )

    def origin_allowed(self, topic: str) -> bool:
        """Return whether messages may be fired to this topic."""
        return self._origins.problem(topic) is None

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
            request: As its dialect parsed it.
            timestamp_ms: The record's; NO_TIMESTAMP when it has none.
            arrived_ms: When the record was taken in.
        """
        dialect, origin, due_ms, _, _, attempt, max_attempts, exception, _, _, _ = request
        if self._by_origin and (own := self._of(origin)) is not self:
            return own.decide(request, timestamp_ms, arrived_ms)
        if dialect == IBM:
            return self._decide_ibm(request, timestamp_ms, arrived_ms)
        if problem := self._origins.problem(origin):
            return Rejection(Reason.ORIGIN_NOT_ALLOWED, problem)
        if due_ms is None:
            due_ms = due_of(request, self._config.delays_ms, timestamp_ms=timestamp_ms, arrived_ms=arrived_ms)
        if problem := self.delay_problem(due_ms, arrived_ms):
            return Rejection(Reason.DELAY_OUT_OF_RANGE, problem)
        droppable, fatal, _, retriable = self._exceptions.classify(exception)
        if droppable:
            return self._dropped(request)
        limit = self._limit if max_attempts is None else min(self._limit, max_attempts)
        if attempt >= limit:
            return self._exhausted(request, limit)
        if fatal:
            return self._fatal(request)
        if not retriable:
            return self._unknown(request)
        return tuple.__new__(Schedule, (due_ms, limit))  # in the hot path: twice as quick

    def _find(self, origin: str) -> Policy:
        """Return the policy for one origin: that of its name, else of the longest glob that matches, else this one."""
        named = (own for globs, own in self._by_origin if globs.names(origin))
        matching = (own for globs, own in self._by_origin if globs.matches(origin))
        return next(named, None) or next(matching, self)

    def _decide_ibm(self, request: Request, timestamp_ms: int, arrived_ms: int) -> Verdict:
        """Decide in IBM's order: drop; retriable with attempts left; fatal or exhausted; anything else.

        Dropping comes before the allow-list: the list guards topics against being written to, and what is dropped
        is written nowhere, so IBM's users keep what they know. For the same reason the DLQ as origin is dropped,
        where `native` says origin-not-allowed.
        """
        kind = self._exceptions.classify(request.exception)
        if kind.droppable:
            return self._dropped(request)
        if request.origin == self._config.dlq_topic:
            return Drop(f"origin {request.origin} is the DLQ, which profile ibm drops")
        if problem := self._origins.problem(request.origin):
            return Rejection(Reason.ORIGIN_NOT_ALLOWED, problem)
        due_ms = due_of(request, self._config.ibm_delays_ms, timestamp_ms=timestamp_ms, arrived_ms=arrived_ms)
        if problem := self.delay_problem(due_ms, arrived_ms):
            return Rejection(Reason.DELAY_OUT_OF_RANGE, problem)
        limit = self._ibm_limit
        if kind.listed and request.attempt < limit:
            return Schedule(due_ms, limit)
        if kind.fatal:
            return self._fatal(request)
        if request.attempt >= limit:
            return self._exhausted(request, limit)
        if not kind.retriable:
            return self._unknown(request)
        return Schedule(due_ms, limit)

    def _dropped(self, request: Request) -> Drop:
        return Drop(f"exception {_shown(request.exception)} is on the list DROPPABLE_EXCEPTION{self._where}")

    def _fatal(self, request: Request) -> Rejection:
        detail = f"exception {_shown(request.exception)} is on the list FATAL_EXCEPTION{self._where}"
        return Rejection(Reason.FATAL, detail)

    def _unknown(self, request: Request) -> Rejection:
        return Rejection(
            Reason.UNKNOWN_EXCEPTION,
            f"exception {_shown(request.exception)} is on no list{self._where}: add it to RETRIABLE_EXCEPTION if it "
            "should be retried",
        )

    def _exhausted(self, request: Request, limit: int) -> Rejection:
        if request.dialect == IBM:
            source = f"one for each of FIRST/SECOND/THIRD_DELAY_MS{self._where}"
        elif limit < self._limit:
            source = "by the message's own headers"
        else:
            source = f"by MAX_ATTEMPTS, or else by the number of DELAYS, never more than {ATTEMPTS_MAX}{self._where}"
        return Rejection(
            Reason.ATTEMPTS_EXHAUSTED, f"{request.attempt} retries have been made and {limit} are allowed, {source}"
        )


def _shown(exception: str | None) -> str:
    """Return the name, escaped and cut to a length that fits a log line."""
    if exception is None:
        return "(none named)"
    text = repr(exception[:_SHOWN_CHARS_MAX])
    return text if len(exception) <= _SHOWN_CHARS_MAX else f"{text}… ({len(exception)} characters)"
