"""The settings that the policy uses."""

from __future__ import annotations

from dataclasses import replace

from sidecar.policy.config import PolicyConfig
from sidecar.settings.origin_policies import OriginPolicy
from sidecar.settings.table import Settings


def policy_config(settings: Settings) -> PolicyConfig:
    """Return the settings that the policy uses."""
    own = settings.dlq_topics

    def of(policy: OriginPolicy) -> PolicyConfig:
        return replace(policy_config(settings.of(policy)), name=policy.origins, dlq_topics=frozenset(own))

    return PolicyConfig(
        input_topic=settings.input_topic,
        dlq_topic=settings.dlq_topic,
        dlq_topics=frozenset(own),
        internal_topics=frozenset({settings.changelog_topic, settings.status_topic}),
        origin_topics=settings.origin_topics,
        delays_ms=settings.effective_delays_ms,
        jitter=settings.jitter,
        max_age_ms=settings.max_age_ms,
        max_per_second=settings.max_per_second,
        order_by_key=settings.order == "key",
        max_attempts=settings.max_attempts,
        max_delay_ms=settings.max_delay_ms,
        droppable=settings.droppable_exception,
        retriable=settings.retriable_exception,
        fatal=settings.fatal_exception,
        by_origin=tuple(map(of, settings.origin_policies)),
        by_name=tuple(map(of, settings.policies)),
        by_exception=settings.exception_policies,
        ibm_delays_ms=settings.ibm_delays_ms if "ibm" in settings.profiles else (),
    )
