"""Calls of the client library that may hang."""

from __future__ import annotations

import threading

import pytest

from sidecar.errors import TransactionFailed
from sidecar.kafka import bounded as module
from sidecar.kafka.bounded import bounded


def test_a_call_that_comes_back_is_waited_for() -> None:
    done: list[str] = []
    bounded(lambda: done.append("done"), "call")
    assert done == ["done"]


def test_what_a_call_raises_is_raised_to_who_waits() -> None:
    def fail() -> None:
        raise TransactionFailed("fenced", unknown=True, replace=True, fenced=True)

    with pytest.raises(TransactionFailed, match="fenced") as caught:
        bounded(fail, "call")
    assert caught.value.fenced


def test_a_call_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANGS_S", 0.05)
    comes_back = threading.Event()
    with pytest.raises(TransactionFailed, match=r"call: no answer within 0\.05 s") as caught:
        bounded(comes_back.wait, "call")  # type: ignore[arg-type]  # what it returns is not looked at
    assert (caught.value.unknown, caught.value.replace) == (False, True)
    comes_back.set()
