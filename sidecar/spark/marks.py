"""How far a turn got, as the metadata of the group's committed offset says it.

A turn is sent in steps, one for each plan. The mark of the last one that was committed has a digest of all that the
turn had sent by then: a micro-batch that Spark runs again goes on behind it, and only if it would send the same.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from sidecar.engine.ports import Outgoing
from sidecar.errors import SidecarError
from sidecar.spark.stream.wire import Closing, StatusRecord

OUTCOME: Final = b"o/"
"""What the keys of outcomes begin with; every other record of the status topic is said again soon."""
CLOSINGS_MAX: Final = 8
"""Most topics that one micro-batch finds closed by name: metadata of an offset may have 4,096 bytes."""
ALL: Final = "*"
"""Stands for all origins, when there are more."""

_FORMER: Final = re.compile(r"spark ([0-9]+) ([0-9a-z-]+)")
_TOPICS: Final = re.compile(r"TopicsRefuse: .*\[topics ([A-Za-z0-9+/=]+)\]")
_BEGINNING: Final = "spark ["
_encode: Final = msgspec.msgpack.Encoder().encode


class TopicsRefuse(SidecarError):
    """Topics that take no records of a micro-batch, which is to be decided anew with these closed.

    It is raised in a worker, and all that Spark hands to the driver is text.

    Args:
        closed: Topic to a `Closure`.
        said: By the broker.
    """

    def __init__(self, closed: Mapping[str, str], said: str) -> None:
        names = ", ".join(sorted(closed)[:CLOSINGS_MAX])
        packed = b64encode(msgspec.json.encode(closed)).decode()
        super().__init__(f"{len(closed)} topics take no records: {names}: {said} [topics {packed}]")

    @staticmethod
    def read(text: str) -> dict[str, str]:
        """Return what the text of a failure says, empty when it is of another kind."""
        found = _TOPICS.search(text)
        return {} if found is None else msgspec.json.decode(b64decode(found[1]), type=dict[str, str])


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """What the metadata of a committed offset says."""

    sequence: int
    """That the turn had reached."""
    checkpoint: str
    """The id of the Spark checkpoint that it was written from."""
    batch: int = -1
    """The micro-batch; -1: a former version has written it."""
    digest: str = ""
    """Of what the turn had sent."""
    writer: str = ""
    """Whose producer it was."""
    closings: list[Closing] = []
    """What the turn took for closed by then beside what its state says."""

    def __str__(self) -> str:
        return f"spark {msgspec.json.encode(self).decode()}"

    @classmethod
    def parse(cls, metadata: str | None) -> Mark | None:
        """Return the mark, None for metadata that is none of ours."""
        text = metadata or ""
        if (found := _FORMER.fullmatch(text)) is not None:
            return cls(int(found[1]), found[2])
        if not text.startswith(_BEGINNING):
            return None
        try:
            return msgspec.json.decode(text.removeprefix("spark "), type=cls)
        except msgspec.MsgspecError:
            return None


class Digest:
    """Of what a turn sends, step by step; however it was cut on its way."""

    def __init__(self) -> None:
        self._hash = sha256()

    def add(self, records: Iterable[Outgoing], status_records: Iterable[StatusRecord]) -> None:
        """Add what is sent, but the counts."""
        self._hash.update(_unframed([each[:5] for each in records]))
        self._hash.update(
            _unframed([(each.key, each.value) for each in status_records if each.key.startswith(OUTCOME)])
        )

    def __str__(self) -> str:
        return self._hash.hexdigest()[:32]


def _unframed(values: Sequence[tuple[Any, ...]]) -> memoryview:
    """Return the bytes of all values, without the length of the list in front of them: it says how they were cut."""
    length = len(values)
    return memoryview(_encode(values))[1 if length < 16 else 3 if length < 65_536 else 5 :]


class ReplayClosings(NamedTuple):
    """What the turns of the one micro-batch that runs again take for closed."""

    now_ms: int = -1
    """The instant of that micro-batch."""
    closings: tuple[tuple[int, Sequence[Closing]], ...] = ()
    """By input partition."""
    others: Sequence[Closing] = ()
    """For all that are not named."""

    def of(self, partition: int, now_ms: int) -> Sequence[Closing]:
        """Return what a turn takes for closed beside what its state says."""
        return dict(self.closings).get(partition, self.others) if now_ms == self.now_ms else ()


def replay_closings(
    now_ms: int, batch: int, marks: Mapping[int, Mark | None], learnt: Mapping[str, str]
) -> ReplayClosings:
    """Return what the turns of a micro-batch that runs again take for closed.

    Args:
        now_ms: Its instant.
        batch: Its number.
        marks: Of the group, by input partition.
        learnt: Topics that refused records of it, and why: for what is not committed yet.
    """
    many = len(learnt) > CLOSINGS_MAX
    fresh = {ALL: next(iter(learnt.values()))} if many else dict(learnt)
    closings = []
    for partition, mark in marks.items():
        if mark is not None and mark.batch == batch:
            known = {each.topic for each in mark.closings}
            more = [Closing(name, why, mark.sequence) for name, why in fresh.items() if name not in known]
            closings.append((partition, [*mark.closings, *more]))
    return ReplayClosings(now_ms, tuple(closings), [Closing(name, why, -1) for name, why in fresh.items()])
