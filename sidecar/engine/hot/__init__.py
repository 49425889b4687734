"""The compiled hot path: what costs microseconds for each message, for the plain cases, in Cython.

Every function here handles the plain case only and says "not mine" otherwise. The Python function beside its caller is
the specification, the way of everything that is not plain, and the fallback where no compiler was at hand: both give
the same, byte for byte. `SIDECAR_PURE_PYTHON=1` leaves the compiled one out.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from sidecar.contract.dialects.registry import DIALECTS
from sidecar.contract.values import HeaderError, is_text, read_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sidecar.contract import Dialect
    from sidecar.engine.ports import Origin
    from sidecar.policy import Policy

COMPILED: Final = os.environ.get("SIDECAR_PURE_PYTHON", "") in {"", "0"} and find_spec(f"{__name__}.ingest") is not None
_PLAIN: Final = (DIALECTS["native"], DIALECTS["ibm"])
KIND: Final = "compiled" if COMPILED else "python"
"""Which of both runs, for a person."""

if TYPE_CHECKING or COMPILED:
    from sidecar.engine.hot import blocks, consume, deliver, ingest, redrive

__all__ = [
    "COMPILED",
    "KIND",
    "blocks",
    "consume",
    "deliver",
    "examiner",
    "ingest",
    "reads_first",
    "redrive",
]


def examiner(
    policy: Policy, dialects: Sequence[Dialect], origins: Mapping[str, Origin], *, measures: bool
) -> ingest.Examiner | None:
    """Return what examines plain records by these rules; None where Python must examine all of them.

    Args:
        policy: Decides on what parses.
        dialects: That the sidecar accepts.
        origins: Topics that exist; kept up to date by its owner.
        measures: Whether an entry is held against the size that its origin takes.
    """
    # Behind a dialect that is not compiled, which may claim a record first, Python examines all.
    leading = {each.name: each for each in _leading(dialects)}
    if not COMPILED or type(origins) is not dict or not leading:
        return None
    made: dict[Policy, ingest.Rules] = {}

    def topic_of(value: bytes) -> tuple[str, ingest.Rules] | None:
        try:
            topic = read_topic("", value)
        except HeaderError:
            return None
        own = policy.plain_of(topic)
        if own is None:
            return None
        if own not in made:
            made[own] = _rules(own)
        return topic, made[own]

    return ingest.Examiner(origins, leading, topic_of, max_delay_ms=policy.max_delay_ms, measures=measures)


def reads_first(name: str, dialects: Sequence[Dialect]) -> bool:
    """Return whether no dialect that is not compiled can claim a record before this one."""
    return any(each.name == name for each in _leading(dialects))


def _leading(dialects: Sequence[Dialect]) -> Iterable[Dialect]:
    return takewhile(_PLAIN.__contains__, dialects)


def _rules(policy: Policy) -> ingest.Rules:
    native_delays_ms, native_limit = policy.attempts_of(DIALECTS["native"])
    ibm_delays_ms, ibm_limit = policy.attempts_of(DIALECTS["ibm"])
    return ingest.Rules(
        lambda exception: is_text(exception) and policy.is_retried(exception.decode()),
        native_delays_ms=native_delays_ms,
        native_limit=native_limit,
        ibm_delays_ms=ibm_delays_ms,
        ibm_limit=ibm_limit,
        ordered=policy.config.order_by_key,
    )
