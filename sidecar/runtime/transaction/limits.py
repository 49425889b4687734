"""Size limits of topics: `max.message.bytes` as the broker last reported it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Final

import structlog

from sidecar.engine.dlqs import ChooseDlq, PolicyDlqs
from sidecar.engine.read_ahead import ReadAhead
from sidecar.engine.transaction import Plan, Terms
from sidecar.kafka.admin.topics import HEADROOM_BYTES, TopicFacts, configure_command
from sidecar.kafka.config import BATCH_BYTES, compresses
from sidecar.runtime.origins import ClosedOrigins
from sidecar.runtime.ports import Catalogue
from sidecar.runtime.transaction.failures import Failures
from sidecar.settings import Settings

log = structlog.get_logger(__name__)

_BYTES_OF: Final = itemgetter(1)


class Limits:
    """The limits of the sidecar's own topics and of the origins.

    Args:
        settings: The effective settings.
        catalogue: Looks up the own topics too, so that a changed limit is known within half a minute.
        facts: The limits at the start.
    """

    def __init__(self, settings: Settings, catalogue: Catalogue, facts: TopicFacts) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._own: Mapping[str, int] = {
            settings.dlq_topic: facts.dlq_bytes_max,
            **facts.policy_dlqs_bytes_max,
            settings.changelog_topic: facts.changelog_bytes_max,
            settings.status_topic: facts.status_bytes_max,
        }
        self._compressed = compresses(settings)
        self._batch_bytes = self._made_for_bytes = BATCH_BYTES
        self._warned_bytes = 0
        catalogue.want(self._own)

    def of(self, topic: str) -> int:
        """Return the limit of a topic; the batch size where it is unknown."""
        known = self._catalogue.origins.get(topic)
        return self._own.get(topic, BATCH_BYTES) if known is None else known.max_message_bytes

    @property
    def dlq(self) -> int:
        """The limit of the DLQ."""
        return self.of(self._settings.dlq_topic)

    def new_batch_bytes(self, *, singly: bool) -> int:
        """Return the batch size for a new producer: it must fit the smallest topic."""
        self._made_for_bytes = 1 if singly else self._batch_bytes
        return self._made_for_bytes

    def unfit(self, made: Plan, *, singly: bool) -> bool:
        """Return whether a plan needs another batch size: brokers apply their limit to whole batches."""
        self._batch_bytes = min(self._batch_bytes, *map(self.of, self._topics(made)))
        wanted = 1 if singly else self._batch_bytes
        if wanted != self._made_for_bytes:
            log.info("producer_replaced", batch_bytes=wanted)
        return wanted != self._made_for_bytes

    def _topics(self, made: Plan) -> set[str]:
        settings, topics = self._settings, {self._settings.changelog_topic}
        for partition_plan in made.partition_plans:
            topics.update(partition_plan.fired)
            topics.update(outgoing.topic for _, outgoing in partition_plan.dead_letters)
            if partition_plan.control_outcomes:
                topics.add(settings.status_topic)
        return topics

    def maintain(self) -> None:
        """Warn of an origin that accepts larger messages than the changelog; once for each larger limit."""
        name = self._settings.changelog_topic
        known = ((each, origin.max_message_bytes) for each, origin in self._catalogue.origins.items())
        largest, takes = max((each for each in known if each[0] not in self._own), key=_BYTES_OF, default=("", 0))
        wanted = takes + HEADROOM_BYTES
        if wanted > max(self.of(name), self._warned_bytes):
            self._warned_bytes = wanted
            fix = configure_command(self._settings, name, f"max.message.bytes={wanted}")
            log.warning("changelog_takes_less", topic=name, origin=largest, origin_bytes_max=takes, fix=fix)

    def terms(
        self,
        failures: Failures,
        closed: ClosedOrigins,
        ahead: Mapping[int, ReadAhead],
        choose_dlq: ChooseDlq | None = None,
    ) -> Terms:
        """Return the terms of the next plan."""
        settings, oversize, closed_dlqs = self._settings, failures.oversize, self.closed_dlqs(failures)
        terms = Terms(
            input_topic=settings.input_topic,
            dlq_topic=settings.dlq_topic,
            app_id=settings.streams_app_id,
            origins=self._catalogue.origins,
            closed=closed.closed,
            origin_timeout_ms=settings.origin_timeout_ms,
            compressed=self._compressed,
            dlq_max_message_bytes=self.dlq,
            changelog_max_message_bytes=self.of(settings.changelog_topic),
            dlq_open=settings.dlq_topic not in closed_dlqs,
            unfireable=failures.unfireable,
            unstorable=oversize.unstorable,
            cut_dead_letters=oversize.cut_dead_letters,
            ahead=ahead,
            deliveries_max=failures.items_max,
            delivery_bytes_max=failures.pace.bytes_max,
            policy_dlqs=None if choose_dlq is None else self._policy_dlqs(choose_dlq, closed_dlqs),
        )
        return replace(terms, block_bytes_max=1) if oversize.singly else terms

    def closed_dlqs(self, failures: Failures) -> frozenset[str]:
        """Return the DLQs that cannot be written for now."""
        if not failures.closed_dlqs:
            return frozenset()
        for topic in failures.closed_dlqs:
            if failures.dlq_open(topic) and not self._is_there(topic):
                # To try it would hold up every partition for as long as the transaction takes to fail.
                failures.postpone_dlq(topic)
                self._catalogue.want((topic,))
        return frozenset(topic for topic in failures.closed_dlqs if not failures.dlq_open(topic))

    def _is_there(self, topic: str) -> bool:
        """Return whether the broker said lately that a topic exists and can be written."""
        known = self._catalogue
        return topic in known.origins and topic not in known.denied and topic not in known.leaderless

    def _policy_dlqs(self, choose: ChooseDlq, closed: frozenset[str]) -> PolicyDlqs:
        others = self._settings.dlq_topics[1:]
        return PolicyDlqs(choose, {topic: self.of(topic) for topic in others}, closed.intersection(others))
