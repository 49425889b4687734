"""The driver's side of a read: one question at a time, which the tasks of the running micro-batch answer.

Tasks connect to the driver, which their machines reach in any case: it is where Spark's own tasks come from.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import structlog

from sidecar.clock import Clock
from sidecar.errors import CommandFailed, StoreFailed
from sidecar.spark.reads.frames import FrameLost, read_frame, write_frame
from sidecar.spark.reads.questions import (
    Answers,
    BoardAddress,
    PartitionAnswer,
    Poll,
    Question,
    Wish,
    decode_said,
    encode,
)

logger = structlog.get_logger(__name__)

ANSWER_S: Final = 10.0
"""The longest time from a question to its last answer: some micro-batches, and less than an HTTP exchange may take."""
TURN_S: Final = 2.0
"""The longest time that a read waits for the one before it."""
CONNECTIONS_MAX: Final = 4_096
"""The most tasks that are connected at once; each executor has as many as it has cores."""
HELLO_S: Final = 5.0
"""The time that a new connection has to show the secret."""
IDLE_S: Final = 300.0
"""The time after which a connection without a question is closed; its task opens another one."""
HELLO_BYTES_MAX: Final = 4_096


class _Open:
    def __init__(self, number: int, wish: Wish, partitions: Collection[int]) -> None:
        self.number = number
        self.wish = wish
        self.missing = set(partitions)
        self.answers: list[PartitionAnswer] = []


class Board:
    """Passes questions to the tasks of a query and collects their answers.

    Any number of threads may ask; the threads of connections answer.

    Args:
        clock: The clock of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._open: _Open | None = None
        self._number = 0
        self._done = -1
        self._secret = secrets.token_urlsafe(32)
        self._listener: socket.socket | None = None
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)

    @property
    def listening(self) -> bool:
        """Whether tasks can answer."""
        return self._listener is not None

    def listen(self, host: str, bind: str, port: int = 0) -> BoardAddress:
        """Listen for tasks.

        Args:
            host: The name under which executors reach the driver.
            bind: The address to listen at.
            port: The port; 0: any free one.

        Raises:
            CommandFailed: The address or port cannot be used.
        """
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        try:
            self._listener = socket.create_server((bind, port), family=family, backlog=256)
        except OSError as cause:
            raise CommandFailed(f"port {port} at {bind}, where executors answer reads: {cause.strerror}") from cause
        threading.Thread(target=self._accept, args=(self._listener,), name="reads", daemon=True).start()
        return BoardAddress(host, self._listener.getsockname()[1], self._secret)

    def close(self) -> None:
        """Stop to listen; reads under way end without an answer."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
            self._listener = None

    def completed(self, batch: int) -> None:
        """Note that a micro-batch is complete: an answer of it, or of an older one, comes from a task that is not."""
        self._done = batch

    def ask(self, wish: Wish, partitions: Collection[int]) -> Sequence[PartitionAnswer]:
        """Return the answers of these partitions. Raises StoreFailed when one of them has none in time."""
        if not self._turn.acquire(timeout=TURN_S):
            raise StoreFailed("another read is under way, and one runs at a time: try again in a moment")
        try:
            return self._ask(wish, partitions)
        finally:
            self._turn.release()

    def _ask(self, wish: Wish, partitions: Collection[int]) -> Sequence[PartitionAnswer]:
        self._number += 1
        asked = _Open(self._number, wish, partitions)
        with self._changed:
            self._open = asked
            answered = self._changed.wait_for(lambda: not asked.missing, ANSWER_S)
            self._open = None
        if not answered:
            named = ", ".join(map(str, sorted(asked.missing)[:10]))
            raise StoreFailed(f"no micro-batch has shown partitions {named} within {ANSWER_S:g} s: try again")
        for each in asked.answers:
            if each.refusal:
                raise StoreFailed(each.refusal)
        return asked.answers

    # Called by the threads of connections

    def _questions(self, poll: Poll) -> list[Question]:
        with self._changed:
            asked = self._open
            if asked is None or poll.batch <= self._done:
                return []
            return [Question(asked.number, asked.wish, sorted(asked.missing))]

    def _answered(self, answers: Sequence[PartitionAnswer]) -> None:
        with self._changed:
            asked = self._open
            for each in answers:
                if asked is not None and each.number == asked.number and each.partition in asked.missing:
                    asked.missing.discard(each.partition)
                    asked.answers.append(each)
            self._changed.notify_all()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="read-answers", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        limit_bytes: int | None = HELLO_BYTES_MAX
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(HELLO_S)
            while self.listening:
                said = decode_said(read_frame(connection, limit_bytes))
                if isinstance(said, Answers):
                    if limit_bytes is not None:
                        return
                    self._answered(said.answers)
                    continue
                if not hmac.compare_digest(said.secret.encode(), self._secret.encode()):
                    logger.warning("read_refused", reason="a connection does not have the secret of this query")
                    return
                limit_bytes = None
                connection.settimeout(IDLE_S)
                write_frame(connection, encode(self._questions(said)))
        except (OSError, FrameLost, msgspec.DecodeError) as cause:
            logger.debug("read_connection_ended", reason=str(cause))
        finally:
            connection.close()
            self._places.release()
