"""The executor's side of a read: asks the driver, at the end of each task, whether there is something to answer.

Nothing here may stop a micro-batch: a driver that cannot be reached is asked again later, and nobody waits for it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from sidecar.clock import SystemClock
from sidecar.spark.reads.frames import FrameLost, read_frame, write_frame
from sidecar.spark.reads.questions import (
    Answers,
    BoardAddress,
    PartitionAnswer,
    Poll,
    Question,
    decode_questions,
    encode,
)

WAIT_S: Final = 1.0
"""The longest time for a connection, and for each answer of the driver."""
AGAIN_S: Final = 3.0
"""The time until the driver is asked again after it could not be reached."""


class Line:
    """A connection to the driver, for all tasks of a worker process.

    Args:
        address: Where the driver listens.
    """

    def __init__(self, address: BoardAddress) -> None:
        self._address = address
        self._clock = SystemClock()
        self._connection: socket.socket | None = None
        self._again_s = float("-inf")

    def questions(self, batch: int) -> Sequence[Question]:
        """Return what the driver asks now; nothing when it cannot be reached."""
        if self._clock.monotonic_s() < self._again_s:
            return ()
        poll = encode(Poll(self._address.secret, batch))
        for _ in range(1 if self._connection is None else 2):  # a connection may have been closed since it was used
            try:
                write_frame(self._connected(), poll)
                return decode_questions(read_frame(self._connected()))
            except (OSError, FrameLost, msgspec.DecodeError):
                self.close()
        self._again_s = self._clock.monotonic_s() + AGAIN_S
        return ()

    def answer(self, answers: Sequence[PartitionAnswer]) -> None:
        """Send answers; they are lost when the driver cannot be reached."""
        try:
            write_frame(self._connected(), encode(Answers(list(answers))))
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> socket.socket:
        if self._connection is None:
            host, port, _ = self._address
            self._connection = socket.create_connection((host, port), timeout=WAIT_S)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connection
