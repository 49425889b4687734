"""The messages that applications write to the retry topic, well-formed and hostile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from sidecar.model import Headers
from tests.simulation.shell.ledger import UID, Fate, Sent

ORDERS: Final = "orders"
BILLS: Final = "bills"
GOOD_ORIGINS: Final = (ORDERS, BILLS)
SHAKY: Final = "shaky"
NARROW: Final = "narrow"
COMPACTED: Final = "compacted"
DELAYS_MS: Final = (0, 0, 100, 1_000, 3_000, 10_000, 30_000)
FAR_MS: Final = 70_000
"""Behind the slots of a second."""
SLOT_MS: Final = 1_000


class Senders:
    """Makes messages; the headers of each have its number.

    Args:
        rng: Of the world.
        is_rich: Some are due in the first millisecond of a slot.
    """

    def __init__(self, rng: random.Random, *, is_rich: bool = False) -> None:
        self._rng = rng
        self._is_rich = is_rich
        self._made = 0

    def _headers(self, origin: str, due_ms: int) -> Headers:
        due = ("retry-due-ms", str(due_ms).encode())
        return [("retry-origin-topic", origin.encode()), due, (UID, b"uid-%d;" % self._made)]

    def _make(
        self, kind: str, origin: str, now_ms: int, value: bytes | None, fate: Fate, key: bytes | None = b"k"
    ) -> Sent:
        self._made += 1
        due_ms = now_ms + self._rng.choice(DELAYS_MS)
        if self._is_rich and self._rng.random() < 0.2:
            due_ms -= due_ms % SLOT_MS
        return Sent(self._made, kind, origin, due_ms, key, value, self._headers(origin, due_ms), fate)

    def good(self, now_ms: int) -> Sent:
        """Make a message that nothing keeps from its origin."""
        rng = self._rng
        value = rng.choice([None, b"", b"v" * rng.randint(1, 300)])
        sent = self._make("good", rng.choice(GOOD_ORIGINS), now_ms, value, Fate.FIRED, rng.choice([None, b"k", b"key"]))
        sent.is_good = True
        if rng.random() < 0.2:
            sent.headers.append(("retry-id", rng.choice([b"one", b"two"])))
        return sent

    def far(self, now_ms: int) -> Sent:
        """Make a good message that is due in a slot of more than a second."""
        sent = self.good(now_ms)
        sent.due_ms = now_ms + FAR_MS
        sent.headers[1] = ("retry-due-ms", b"%d" % sent.due_ms)
        return sent

    def patient(self, now_ms: int, delays_ms: Sequence[int], jitter: float, clock_ms: int) -> Sent:
        """Make a good message that leaves its due to the policy.

        Args:
            now_ms: The record's timestamp.
            delays_ms: The policy's, by attempt.
            jitter: Largest share of a delay that is added to it.
            clock_ms: How far the sidecar's clock may be behind: the delay of a record from its future counts from its
                arrival.
        """
        sent = self.good(now_ms)
        attempt = self._rng.randrange(len(delays_ms))
        delay_ms = delays_ms[attempt]
        sent.due_ms = now_ms + delay_ms - clock_ms
        sent.slack_ms = int(delay_ms * jitter) + 2 * clock_ms
        sent.headers[1] = ("retry-attempt", b"%d" % attempt)
        return sent

    def redriven(self, dead: Sent, headers: Headers, due_ms: int) -> Sent:
        """Make the message that a dead letter becomes when an operator redrives it."""
        self._made += 1
        own = (UID, b"uid-%d;" % self._made)
        headers = [own if name == UID else (name, value) for name, value in headers]
        return Sent(self._made, "redriven", dead.origin, due_ms, dead.key, dead.value, headers, Fate.EITHER)

    def shaky(self, now_ms: int, *, at_once: bool = False) -> Sent:
        """Make a message to an origin that comes and goes."""
        sent = self._make("shaky", SHAKY, now_ms, b"s", Fate.EITHER)
        if at_once:
            sent.due_ms = now_ms
            sent.headers[1] = ("retry-due-ms", str(now_ms).encode())
        return sent

    def sized(self, now_ms: int, limits: list[int]) -> Sent:
        """Make a message about as large as some topic allows, or a little more or less."""
        rng = self._rng
        size = max(0, rng.choice(limits) - rng.choice([0, 1, 60, 100, 300, 600, 700, 1000]) + rng.choice([0, 40, 400]))
        value = rng.randbytes(size) if rng.random() < 0.6 else b"z" * size
        return self._make("sized", rng.choice([NARROW, *GOOD_ORIGINS]), now_ms, value, Fate.EITHER)

    def many_headers(self, now_ms: int) -> Sent:
        """Make a message with very many headers."""
        sent = self._make("headers", self._rng.choice([NARROW, *GOOD_ORIGINS]), now_ms, b"h", Fate.EITHER)
        sent.headers += [("h", None)] * self._rng.choice([30, 100, 400])
        if self._rng.random() < 0.7:
            self._spoil(sent)
        return sent

    def _spoil(self, sent: Sent) -> None:
        sent.fate = Fate.DEAD
        sent.headers[1] = ("retry-due-ms", b"soon")

    def bad(self, now_ms: int) -> Sent:
        """Make a message that every rule sends to the DLQ."""
        rng = self._rng
        sent = self._make("bad", rng.choice(GOOD_ORIGINS), now_ms, rng.randbytes(rng.choice([0, 10, 3_000])), Fate.DEAD)
        match rng.randrange(5):
            case 0:
                del sent.headers[0]
            case 1:
                self._spoil(sent)
            case 2:
                sent.headers.append(("retry-attempt", b"9"))
                sent.headers.append(("retry-exception", b"com.acme." + b"X" * rng.choice([10, 1_000, 5_000])))
            case 3:
                sent.headers.append(sent.headers[0])
            case _:
                forbidden = rng.choice([b"retry", b"dlq", b"app-status", b"\xff", b"", b"a b"])
                sent.headers[0] = ("retry-origin-topic", forbidden)
        return sent

    def named(self, now_ms: int) -> Sent:
        """Make a message to a topic that does not exist, under one of very many names."""
        return self._make("named", f"no-such-{self._rng.randrange(40)}", now_ms, b"n", Fate.DEAD)

    def keyless(self, now_ms: int) -> Sent:
        """Without a key, to a compacted topic: the broker names it and takes the others."""
        rng = self._rng
        key = rng.choice([None, b"k", b"k"])
        return self._make("keyless", COMPACTED, now_ms, b"c", Fate.DEAD if key is None else Fate.FIRED, key)
