"""Questions reach the tasks of a query over a real socket, and their answers come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sidecar.clock import SystemClock
from sidecar.engine.selection import Selection
from sidecar.errors import CommandFailed, StoreFailed
from sidecar.spark.reads import board as module
from sidecar.spark.reads.board import Board
from sidecar.spark.reads.line import AGAIN_S, Line
from sidecar.spark.reads.questions import BoardAddress, FindNamed, ListPending, PartitionAnswer, Question
from tests.waiting import eventually

WAIT_S = 60.0
WISH = ListPending(Selection(headers=(("tenant", "acme"),)), 0, 10, 3, (1, 2, 3))


@contextmanager
def listening() -> Iterator[tuple[Board, BoardAddress]]:
    board = Board(SystemClock())
    try:
        yield board, board.listen("127.0.0.1", "127.0.0.1")
    finally:
        board.close()


def answer_of(question: Question, partition: int, **more: object) -> PartitionAnswer:
    return PartitionAnswer(number=question.number, partition=partition, batch=4, instant_ms=99, **more)  # type: ignore[arg-type]


class Tasks(threading.Thread):
    """Polls as the tasks of micro-batches do, and answers for some partitions."""

    def __init__(self, address: BoardAddress, partitions: set[int], batch: int = 4, refusal: str = "") -> None:
        super().__init__(daemon=True)
        self._line = Line(address)
        self._partitions = partitions
        self._batch = batch
        self._refusal = refusal
        self._end = threading.Event()
        self.seen: list[Question] = []

    def run(self) -> None:
        while not self._end.wait(0.005):
            for question in self._line.questions(self._batch):
                self.seen.append(question)
                own = [each for each in question.partitions if each in self._partitions]
                self._line.answer([answer_of(question, each, entries=[b"e"], refusal=self._refusal) for each in own])

    def __enter__(self) -> Tasks:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join(5)
        self._line.close()


def test_a_question_is_answered_by_the_tasks_that_have_its_partitions() -> None:
    with listening() as (board, address), Tasks(address, {0, 2}) as one, Tasks(address, {1}):
        answers = board.ask(WISH, [0, 1, 2])
        assert sorted((each.partition, each.instant_ms, each.batch) for each in answers) == [
            (0, 99, 4),
            (1, 99, 4),
            (2, 99, 4),
        ]
        assert one.seen[0].wish == WISH
        assert len(board.ask(FindNamed(b"order-7"), [1])) == 1


def test_a_partition_that_nobody_shows_is_named_and_the_next_read_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 5.0)
    with listening() as (board, address), Tasks(address, {0}):
        with pytest.raises(StoreFailed, match="no micro-batch has shown partitions 5"):
            board.ask(WISH, [0, 5])
        monkeypatch.setattr(module, "ANSWER_S", WAIT_S)
        assert len(board.ask(WISH, [0])) == 1


def test_a_partition_that_cannot_be_read_refuses_in_words() -> None:
    with (
        listening() as (board, address),
        Tasks(address, {0}, refusal="partition 0 is importing"),
        pytest.raises(StoreFailed, match="is importing"),
    ):
        board.ask(WISH, [0])


def test_a_task_of_a_completed_micro_batch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a zombie, whose state is old."""
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    with listening() as (board, address), Tasks(address, {0}, batch=4) as tasks:
        board.completed(4)
        with pytest.raises(StoreFailed, match="no micro-batch"):
            board.ask(WISH, [0])
        assert tasks.seen == []


def test_one_read_runs_at_a_time_and_others_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_S", 0.05)
    monkeypatch.setattr(module, "ANSWER_S", WAIT_S)
    with listening() as (board, address):
        first = threading.Thread(target=board.ask, args=(WISH, [0]), daemon=True)
        first.start()
        eventually(lambda: board._open is not None, WAIT_S, "the first read has begun")
        with pytest.raises(StoreFailed, match="one runs at a time"):
            board.ask(WISH, [0])
        with Tasks(address, {0}):
            first.join(WAIT_S)
        assert not first.is_alive(), "the first read has its answer"


def test_a_stranger_is_not_told_what_is_asked() -> None:
    with listening() as (board, address), Tasks(address._replace(secret="erraten, ü"), {0}) as stranger:
        with Tasks(address, {0}):
            assert len(board.ask(WISH, [0])) == 1
        assert stranger.seen == []


def test_a_driver_that_cannot_be_reached_costs_a_task_one_try() -> None:
    with listening() as (_, address):
        pass
    line, began_s = Line(address), SystemClock().monotonic_s()
    assert line.questions(1) == ()
    assert line._again_s >= began_s + AGAIN_S
    line.answer([])
    line.close()


def test_a_port_that_is_in_use_is_named() -> None:
    with listening() as (_, address), pytest.raises(CommandFailed, match=f"port {address.port} at 127.0.0.1"):
        Board(SystemClock()).listen("127.0.0.1", "127.0.0.1", address.port)
