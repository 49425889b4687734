"""The verdict on a request, in the order of its dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.contract.dead_letter import DeadLetter
from sidecar.contract.dialects.dialect import Check, Delays, Dialect
from sidecar.contract.dialects.registry import DIALECTS_BY_CODE, parse
from sidecar.model import (
    ATTEMPTS_MAX,
    DUE_MS_MAX,
    NO_TIMESTAMP,
    Drop,
    Headers,
    Reason,
    Record,
    Rejection,
    Request,
    Schedule,
)
from sidecar.policy.backoff import drawn, due_of
from sidecar.policy.config import PolicyConfig
from sidecar.policy.globs import Choice
from sidecar.policy.origins import OriginRules
from sidecar.policy.rules import ExceptionClass, ExceptionRules

_CACHED_TOPICS: Final = 8192
_CACHED_NAMES: Final = 4096
_CACHED_CHARS_MAX: Final = 512
_SHOWN_CHARS_MAX: Final = 200

Verdict = Schedule | Drop | Rejection


class _Case(NamedTuple):
    """A request with everything that the checks read."""

    request: Request
    kind: ExceptionClass
    due_ms: int
    limit: int
    timestamp_ms: int
    arrived_ms: int

    @property
    def first_ms(self) -> int:
        """When the message failed for the first time: now, unless a header says when."""
        if self.request.first_ms is not None:
            return self.request.first_ms
        return self.timestamp_ms if self.timestamp_ms != NO_TIMESTAMP else self.arrived_ms


_Check = Callable[[_Case], Verdict | None]


class Policy:
    """Decides what becomes of a request. Pure: the same request, times and settings give the same verdict."""

    def __init__(self, config: PolicyConfig) -> None:
        self._config = config
        self._where = f" (policy of {config.name})" if config.name else ""
        self._by_origin = Choice((own.name, Policy(own)) for own in config.by_origin)
        self._by_name = {own.name: Policy(own) for own in config.by_name}
        self._by_exception = Choice(config.by_exception)
        self._of = lru_cache(_CACHED_TOPICS)(self._find)
        self._chosen = lru_cache(_CACHED_NAMES)(self._by_exception.of)
        # Messages can choose, or some of them must be looked at one by one.
        self._single = not (config.by_origin or config.by_name or config.by_exception)
        self._aged = config.max_age_ms is not None
        self._rules_of = {code: self._rules(dialect) for code, dialect in DIALECTS_BY_CODE.items()}
        self._exceptions = ExceptionRules(config.droppable, config.retriable, config.fatal)
        self._dlqs = {config.dlq_topic, *config.dlq_topics}
        own_topics = {config.input_topic, *self._dlqs, *config.internal_topics}
        self._origins = OriginRules(config.origin_topics, own_topics)

    @property
    def config(self) -> PolicyConfig:
        """The settings that it decides by."""
        return self._config

    def origin_allowed(self, topic: str) -> bool:
        """Return whether messages may be fired to this topic."""
        return self._origins.problem(topic) is None

    @property
    def rate_of(self) -> Callable[[str], float | None] | None:
        """Return what tells the most messages a second for an origin; None when no origin has a limit."""
        configs = (self._config, *self._config.by_origin)
        return self._rate_of if any(each.max_per_second is not None for each in configs) else None

    def _rate_of(self, origin: str) -> float | None:
        return self._of(origin).max_per_second

    @property
    def ordered(self) -> Callable[[str], bool] | None:
        """Return what tells whether messages of an origin keep the order of their key; None when none do."""
        configs = (self._config, *self._config.by_origin)
        return self._is_ordered if any(each.order_by_key for each in configs) else None

    def _is_ordered(self, origin: str) -> bool:
        return self._of(origin).config.order_by_key

    @property
    def max_per_second(self) -> float | None:
        """The setting MAX_PER_SECOND of the origins that have this policy."""
        return self._config.max_per_second

    def plain_of(self, topic: str) -> Policy | None:
        """Return the policy of an origin that is allowed, if its due times follow from the attempt alone."""
        own = self._of(topic)
        apart = own.config.jitter or own.config.max_age_ms is not None
        return own if self.origin_allowed(topic) and not apart else None

    def is_retried(self, exception: str) -> bool:
        """Return whether no list of exceptions objects to a retry, and none chooses another policy."""
        kind = self._exceptions.classify(exception)
        return kind.retriable and not kind.droppable and not kind.fatal and self.chosen_by(exception) is None

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

    def policy_of(self, request: Request) -> Policy | Rejection:
        """Return the policy that a request meets: the named one or its origin's, or what its exception chooses."""
        policy = self.base_of(request)
        if isinstance(policy, Rejection):
            return policy
        chosen = policy.chosen_by(request.exception or "")
        return policy if chosen is None else self._by_name[chosen]

    def base_of(self, request: Request) -> Policy | Rejection:
        """Return the policy whose exception rules a request meets: the one that it names, else that of its origin."""
        name = request.policy
        policy = self._of(request.origin) if name is None else self._by_name.get(name)
        if policy is None:
            known = ", ".join(sorted(self._by_name)) or "none, POLICIES is empty"
            return Rejection(Reason.BAD_HEADER, f"retry-policy={_shown(name)} is no policy: allowed are {known}")
        return policy

    def chosen_by(self, exception: str) -> str | None:
        """Return the name of the policy that an exception chooses, None when it stays with this one."""
        if not self._by_exception:
            return None
        # Senders can make up names without end: the cache is bounded in number and in length.
        return self._chosen(exception) if len(exception) <= _CACHED_CHARS_MAX else self._by_exception.of(exception)

    @property
    def has_policy_dlqs(self) -> bool:
        """Whether a policy has a DLQ of its own."""
        return len(self._dlqs) > 1

    def dlq_of(self, dialects: Sequence[Dialect], key: bytes | None, value: bytes | None, headers: Headers) -> str:
        """Return the DLQ of a message: that of the policy that it meets, else of its origin's, if that can be read.

        Args:
            dialects: Accepted dialects, in order of preference.
            key: The key.
            value: The value.
            headers: As they came, or those of its dead letter.
        """
        request = parse(Record(0, 0, NO_TIMESTAMP, key, value, headers), dialects)
        policy = self.policy_of(request) if isinstance(request, Request) else None
        if not isinstance(policy, Policy):
            policy = self._of(DeadLetter(headers, dialects).origin)
        return policy.config.dlq_topic

    def decide(
        self, request: Request, timestamp_ms: int, arrived_ms: int, partition: int = 0, offset: int = 0
    ) -> Verdict:
        """Return the verdict.

        Args:
            request: The request, as its dialect parsed it.
            timestamp_ms: The record's; NO_TIMESTAMP when it has none.
            arrived_ms: When the record was ingested.
            partition: With `offset`, what the jitter is drawn from.
            offset: The record's, in the input topic.
        """
        if self._single and request.policy is None:
            return self.decide_here(request, timestamp_ms, arrived_ms, partition, offset)
        policy = self.policy_of(request)
        if type(policy) is Rejection:
            return policy
        assert type(policy) is Policy
        return policy.decide_here(request, timestamp_ms, arrived_ms, partition, offset)

    def decide_here(self, request: Request, timestamp_ms: int, arrived_ms: int, partition: int, offset: int) -> Verdict:
        """Return the verdict of this policy, whatever policy the request meets."""
        dialect, origin, due_ms, _, _, attempt, max_attempts, exception, _, _, _, _, _, _ = request
        delays_ms, limit, checks = self._rules_of[dialect]
        if max_attempts is not None and max_attempts < limit:
            limit = max_attempts
        if due_ms is None:
            jitter = self._config.jitter and self._config.jitter * drawn(partition, offset)
            due_ms = due_of(request, delays_ms, timestamp_ms=timestamp_ms, arrived_ms=arrived_ms, jitter=jitter)
        kind = self._exceptions.classify(exception)
        droppable, fatal, _, retriable = kind
        # In the hot path: to what no check objects, their order means nothing.
        if (
            not retriable
            or droppable
            or fatal
            or attempt >= limit
            or self._aged
            or self._origins.problem(origin)
            or self.delay_problem(due_ms, arrived_ms)
        ):
            case = _Case(request, kind, due_ms, limit, timestamp_ms, arrived_ms)
            for check in checks:
                if (verdict := check(case)) is not None:
                    return verdict
            return self._schedule(case)
        return tuple.__new__(Schedule, (due_ms, limit, None))  # twice as quick as its own constructor

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
        return self._by_origin.of(origin) or self

    def _droppable(self, case: _Case) -> Drop | None:
        if not case.kind.droppable:
            return None
        return Drop(f"exception {_shown(case.request.exception)} is on the list DROPPABLE_EXCEPTION{self._where}")

    def _dlq_as_origin(self, case: _Case) -> Drop | None:
        request = case.request
        if request.origin not in self._dlqs:
            return None
        return Drop(f"origin {request.origin} is a DLQ, which profile {DIALECTS_BY_CODE[request.dialect].name} drops")

    def _not_allowed(self, case: _Case) -> Rejection | None:
        problem = self._origins.problem(case.request.origin)
        return Rejection(Reason.ORIGIN_NOT_ALLOWED, problem) if problem else None

    def _too_late(self, case: _Case) -> Rejection | None:
        problem = self.delay_problem(case.due_ms, case.arrived_ms)
        return Rejection(Reason.DELAY_OUT_OF_RANGE, problem) if problem else None

    def _too_old(self, case: _Case) -> Rejection | None:
        age_ms, max_age_ms = case.due_ms - case.first_ms, self._config.max_age_ms
        if max_age_ms is None or age_ms <= max_age_ms:
            return None
        return Rejection(
            Reason.TOO_OLD,
            f"the retry would be {age_ms} ms after the first failure at {case.first_ms}: allowed are {max_age_ms} ms, "
            f"by MAX_AGE{self._where}",
        )

    def _retriable(self, case: _Case) -> Schedule | None:
        if not case.kind.listed or case.request.attempt >= case.limit:
            return None
        return self._schedule(case)

    def _schedule(self, case: _Case) -> Schedule:
        """Return the timer of a message; its headers take its first failure along where an age limit needs that."""
        noted = not self._aged or case.request.first_ms is not None
        return Schedule(case.due_ms, case.limit, None if noted else case.first_ms)

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
            Check.AGE: self._too_old,
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
