"""What the settings of a world ask for: each is there in some of the worlds, by the seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.policy.backoff import Backoff
from sidecar.settings.origin_policies import OriginPolicy
from tests.simulation.shell.senders import BILLS, GOOD_ORIGINS, ORDERS

DELAYS: Final = Backoff(first_ms=1_000, factor=3.0, max_ms=5_000, attempts=3)
JITTER: Final = 0.5
RATES: Final = (20.0, 100.0)


BLOCK: Final = 100


@dataclass(frozen=True, slots=True)
class Traits:
    """The settings of one world."""

    is_rich: bool
    """More may happen, under more settings; else brokers, senders and operators do the plain things."""
    has_real_disks: bool
    """The state folders are on the disk, each with a RocksDB."""
    has_small_buffers: bool
    """A few messages fill the buffer."""
    own_dlqs: dict[str, str]
    """By origin, the DLQ of those that have one of their own."""
    ordered: frozenset[str]
    """Origins whose messages keep the order of their key."""
    rates: dict[str, float]
    """Messages a second of the origins that have a rate."""
    has_delays: bool
    """The origins have delays of their own, which grow and vary."""

    @property
    def policies(self) -> tuple[OriginPolicy, ...]:
        """The settings of the origins."""
        return tuple(OriginPolicy(each, given) for each in GOOD_ORIGINS if (given := self._given(each)))

    def _given(self, origin: str) -> dict[str, object]:
        given: dict[str, object] = {}
        if origin in self.own_dlqs:
            given["DLQ_TOPIC"] = self.own_dlqs[origin]
        if origin in self.ordered:
            given["ORDER"] = "key"
        if origin in self.rates:
            given["MAX_PER_SECOND"] = self.rates[origin]
        if self.has_delays:
            given |= {"BACKOFF": DELAYS, "JITTER": JITTER}
        return given


def traits_of(seed: int) -> Traits:
    """Return the settings of the world of a seed: every second hundred of them is rich."""
    rich = seed // BLOCK % 2 == 1
    return Traits(
        is_rich=rich,
        has_real_disks=rich and seed % 9 < 2,
        has_small_buffers=rich and seed % 3 == 1,
        own_dlqs={BILLS: "dlq-bills"} if seed % 7 == 5 else {},
        ordered=frozenset({ORDERS, BILLS} if rich and seed % 8 == 2 else {ORDERS} if rich and seed % 4 == 2 else ()),
        rates={ORDERS: RATES[seed % 2]} if rich and seed % 5 == 3 else {},
        has_delays=rich and seed % 3 == 0,
    )
