"""The topics that messages may be fired to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from sidecar.policy.globs import Globs

_CACHED_TOPICS: Final = 8192
_RESERVED_PREFIX: Final = "__"
_RESERVED_SUFFIXES: Final = ("-changelog", "-repartition", "-status")


class OriginRules:
    """The allow-list ORIGIN_TOPICS, and what it cannot allow."""

    def __init__(self, allowed: Iterable[str], own_topics: Iterable[str]) -> None:
        self._allowed = Globs(allowed)
        self._own_topics = frozenset(own_topics)
        self.problem = lru_cache(_CACHED_TOPICS)(self._problem)
        """Return why messages may not be fired to this topic, for a person; None when they may."""

    def _problem(self, topic: str) -> str | None:
        if topic in self._own_topics:
            return f"origin {topic} is a topic of the sidecar itself, to which it fires nothing"
        if self._allowed.names(topic):
            return None
        if topic.startswith(_RESERVED_PREFIX) or topic.endswith(_RESERVED_SUFFIXES):
            return f"origin {topic} looks like an internal topic: allowed only when ORIGIN_TOPICS has this very name"
        if not self._allowed.matches(topic):
            return f"origin {topic} is not allowed: add it to ORIGIN_TOPICS if it should be"
        return None
