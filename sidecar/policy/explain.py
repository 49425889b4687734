"""What a policy does with a message: which rules it meets, and when each of its retries is due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from sidecar.model import Request, Schedule
from sidecar.policy.config import PolicyConfig
from sidecar.policy.policy import Policy, Verdict


class Met(NamedTuple):
    """The policy that a request meets."""

    name: str
    """The topic, glob or name of the policy; empty: the general settings."""
    by: str
    """What chose it: `retry-policy`, `EXCEPTION_POLICIES`, `ORIGIN_POLICIES`, or empty for the general settings."""
    config: PolicyConfig
    max_per_second: float | None
    """The rate of the request's origin."""
    ordered: bool
    """Whether messages of the origin keep the order of their key."""


class Step(NamedTuple):
    """One failure of a message, and what follows."""

    attempt: int
    """Retries made before it."""
    failed_ms: int
    verdict: Verdict
    latest_ms: int
    """The latest due time that jitter can give; 0 when there is no retry."""


def met(config: PolicyConfig, request: Request) -> Met | None:
    """Return the policy that a request meets; None when it names one that is not there."""
    policy = Policy(config)
    base = policy.base_of(request)
    if not isinstance(base, Policy):
        return None
    by_origin = Policy(config).base_of(request._replace(policy=None))
    rate = by_origin.max_per_second if isinstance(by_origin, Policy) else None
    ordered = isinstance(by_origin, Policy) and by_origin.config.order_by_key
    chosen = base.chosen_by(request.exception or "")
    if chosen is not None:
        own = next(each for each in config.by_name if each.name == chosen)
        return Met(chosen, "EXCEPTION_POLICIES", own, rate, ordered)
    by = "retry-policy" if request.policy is not None else "ORIGIN_POLICIES" if base.config.name else ""
    return Met(base.config.name, by, base.config, rate, ordered)


def steps(config: PolicyConfig, request: Request, failed_ms: int) -> Iterator[Step]:
    """Yield what follows each failure of a message that fails whenever it is retried, at once; the last has no retry.

    Args:
        config: The settings that decide.
        request: What the message asks for at its first failure. Times of its own count once.
        failed_ms: Instant of the first failure, epoch ms.
    """
    policy = Policy(_without_jitter(config))
    known = met(config, request)
    jitter = 0.0 if known is None else known.config.jitter
    while True:
        verdict = policy.decide(request, failed_ms, failed_ms)
        if not isinstance(verdict, Schedule):
            yield Step(request.attempt, failed_ms, verdict, 0)
            return
        ours = request.due_ms is None and request.delay_ms is None
        base_ms = failed_ms if request.base_ms is None else request.base_ms
        latest_ms = verdict.due_ms + (int((verdict.due_ms - base_ms) * jitter) if ours else 0)
        yield Step(request.attempt, failed_ms, verdict, latest_ms)
        first_ms = failed_ms if request.first_ms is None else request.first_ms
        failed_ms = max(failed_ms, verdict.due_ms)
        request = request._replace(
            attempt=request.attempt + 1,
            due_ms=None,
            delay_ms=None,
            base_ms=None if request.base_ms is None else failed_ms,
            max_attempts=verdict.limit,
            first_ms=first_ms,
        )


def _without_jitter(config: PolicyConfig) -> PolicyConfig:
    own, named = map(_without_jitter, config.by_origin), map(_without_jitter, config.by_name)
    return replace(config, jitter=0.0, by_origin=tuple(own), by_name=tuple(named))
