"""The plan of each message of the demo: what it does, and what must become of it. Pure.

Two headers of every message have its number and its plan, so a reader of a topic knows what should have happened
without asking the sidecar, the sender or the application.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.contract.dialects import native
from sidecar.model import Headers, Reason

ID: Final = "demo-id"
PLAN: Final = "demo-plan"

INPUT_TOPIC: Final = "retry"
DLQ_TOPIC: Final = "dlq"
ORIGINS: Final = ("orders", "payments", "emails")
MISSING_ORIGIN: Final = "refunds"
"""An origin that ORIGIN_TOPICS allows but that does not exist."""
FOREIGN_ORIGIN: Final = "salaries"
"""An origin that ORIGIN_TOPICS does not allow."""

POLICY_DELAYS_MS: Final = (500, 1_000, 2_000)
"""The DELAYS of the demo, one for each allowed retry."""
DELAY_MIN_MS: Final = 200
DELAY_MAX_MS: Final = 20_000
LATER_MS: Final = 3_600_000
WARM_UP_DELAY_MS: Final = 1_000

FIRED: Final = "fired"
DROPPED: Final = "dropped"


class Kind(StrEnum):
    """The kind of a message."""

    FIRST_TRY = "first-try"
    """Succeeds at once: the sidecar never sees it."""
    SECOND_TRY = "second-try"
    THIRD_TRY = "third-try"
    NEVER = "never"
    """Fails each time, and leaves the delay to the policy."""
    LATER = "later"
    """Fails once and is due in an hour: it is still pending at the end."""
    FATAL = "fatal"
    DROPPABLE = "droppable"
    NO_ORIGIN = "no-origin"
    BAD_DELAY = "bad-delay"
    TOO_FAR = "too-far"
    MISSING_ORIGIN = "missing-origin"
    FOREIGN_ORIGIN = "foreign-origin"


_IN_A_THOUSAND: Final[Mapping[Kind, int]] = {
    Kind.FIRST_TRY: 200,
    Kind.SECOND_TRY: 420,
    Kind.THIRD_TRY: 200,
    Kind.NEVER: 30,
    Kind.LATER: 10,
    Kind.FATAL: 50,
    Kind.DROPPABLE: 50,
    Kind.NO_ORIGIN: 8,
    Kind.BAD_DELAY: 8,
    Kind.TOO_FAR: 8,
    Kind.MISSING_ORIGIN: 8,
    Kind.FOREIGN_ORIGIN: 8,
}

_MALFORMED: Final[Mapping[Kind, tuple[Reason, Headers]]] = {
    Kind.NO_ORIGIN: (Reason.MISSING_HEADER, [(native.DELAY_MS, b"1000")]),
    Kind.BAD_DELAY: (Reason.BAD_HEADER, [(native.ORIGIN_TOPIC, b"orders"), (native.DELAY_MS, b"soon")]),
    Kind.TOO_FAR: (
        Reason.DELAY_OUT_OF_RANGE,
        [(native.ORIGIN_TOPIC, b"orders"), (native.DELAY_MS, b"%d" % (400 * 86_400_000))],
    ),
    Kind.MISSING_ORIGIN: (
        Reason.ORIGIN_UNKNOWN,
        [(native.ORIGIN_TOPIC, MISSING_ORIGIN.encode()), (native.DELAY_MS, b"1000")],
    ),
    Kind.FOREIGN_ORIGIN: (
        Reason.ORIGIN_NOT_ALLOWED,
        [(native.ORIGIN_TOPIC, FOREIGN_ORIGIN.encode()), (native.DELAY_MS, b"1000")],
    ),
}
"""The messages that go straight to the retry topic: their reason on the DLQ, and their malformed headers."""

_FAILURES: Final[Mapping[Kind, int]] = {
    Kind.FIRST_TRY: 0,
    Kind.SECOND_TRY: 1,
    Kind.THIRD_TRY: 2,
    Kind.NEVER: len(POLICY_DELAYS_MS) + 1,
}


class Plan(NamedTuple):
    """The plan of one message."""

    kind: Kind
    delays_ms: tuple[int, ...] = ()
    """The delays that the application sets after the first, second, ... failure; then the policy's delay applies."""

    @property
    def trips(self) -> int:
        """The number of its records on the retry topic, when all goes well."""
        return _FAILURES.get(self.kind, 1)

    @property
    def deliveries(self) -> int:
        """The number of its deliveries while the demo runs."""
        return min(self.trips, len(POLICY_DELAYS_MS)) if self.kind in _FAILURES else 0

    def fails(self, attempt: int) -> bool:
        """Return whether the application fails at this try, counting retries already made."""
        return attempt < self.trips

    def delay_ms(self, attempt: int) -> int | None:
        """Return the delay that the application sets when it fails after `attempt` retries; None: the policy's."""
        return self.delays_ms[attempt] if attempt < len(self.delays_ms) else None

    def outcome(self, attempt: int) -> str:
        """Return what must become of its record on the retry topic: FIRED, DROPPED, or the reason on the DLQ."""
        if self.kind in _MALFORMED:
            return _MALFORMED[self.kind][0].value
        if self.kind is Kind.FATAL:
            return Reason.FATAL.value
        if self.kind is Kind.DROPPABLE:
            return DROPPED
        return FIRED if attempt < len(POLICY_DELAYS_MS) else Reason.ATTEMPTS_EXHAUSTED.value

    def __str__(self) -> str:
        return ":".join((self.kind, *(str(delay) for delay in self.delays_ms)))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Return the plan of a header's text."""
        kind, *delays = text.split(":")
        return cls(Kind(kind), tuple(int(delay) for delay in delays))


class DemoMessage(NamedTuple):
    """One message as it is sent."""

    topic: str
    key: bytes
    value: bytes
    headers: Headers
    plan: Plan


class Totals(NamedTuple):
    """The totals of all plans."""

    trips: int
    deliveries: int
    pending: int


def totals(messages: Sequence[DemoMessage]) -> Totals:
    """Add up the plans."""
    return Totals(
        trips=sum(message.plan.trips for message in messages),
        deliveries=sum(message.plan.deliveries for message in messages),
        pending=sum(message.plan.kind is Kind.LATER for message in messages),
    )


def make_messages(count: int, seed: int) -> list[DemoMessage]:
    """Return `count` messages, each kind among them at least once; the same seed gives the same ones."""
    chance = random.Random(seed)
    kinds = list(Kind) + chance.choices(list(_IN_A_THOUSAND), list(_IN_A_THOUSAND.values()), k=count - len(Kind))
    chance.shuffle(kinds)
    return [_message(number, kind, chance) for number, kind in enumerate(kinds, 1)]


def warm_up_messages(count: int, first: int) -> list[DemoMessage]:
    """Return messages that come back once, soon; they are numbered from `first` on."""
    chance = random.Random(first)
    plan = Plan(Kind.SECOND_TRY, (WARM_UP_DELAY_MS,))
    return [_planned(number, plan, chance) for number in range(first, first + count)]


def _message(number: int, kind: Kind, chance: random.Random) -> DemoMessage:
    return _planned(number, Plan(kind, _delays_ms(kind, chance)), chance)


def _planned(number: int, plan: Plan, chance: random.Random) -> DemoMessage:
    kind = plan.kind
    origin = chance.choice(ORIGINS)
    malformed = _MALFORMED.get(kind)
    return DemoMessage(
        topic=INPUT_TOPIC if malformed else origin,
        key=b"customer-%d" % chance.randrange(500),
        value=b'{"%s": %d, "cents": %d}' % (origin.encode(), number, chance.randrange(100_000)),
        headers=[(ID, b"%d" % number), (PLAN, str(plan).encode()), *(malformed[1] if malformed else [])],
        plan=plan,
    )


def _delays_ms(kind: Kind, chance: random.Random) -> tuple[int, ...]:
    match kind:
        case Kind.SECOND_TRY:
            return (_delay_ms(chance, DELAY_MAX_MS),)
        case Kind.THIRD_TRY:
            # Both together are no longer than one may be.
            return (_delay_ms(chance, DELAY_MAX_MS // 2), _delay_ms(chance, DELAY_MAX_MS // 2))
        case Kind.LATER:
            return (LATER_MS,)
        case _:
            return ()


def _delay_ms(chance: random.Random, longest_ms: int) -> int:
    """Return a delay of any magnitude: as many below two seconds as above."""
    return round(DELAY_MIN_MS * math.pow(longest_ms / DELAY_MIN_MS, chance.random()))
