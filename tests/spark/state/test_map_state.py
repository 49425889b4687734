"""State entries in Spark's map state: PySpark's own client against a state server that speaks its protocol."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import MapState
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from sidecar.clock import SystemClock
from sidecar.spark.state.map_state import READS_AHEAD, WRITES_AHEAD, MapStateEntries, PipelinedEntries, entries_of

WAIT_S = 30.0
CELL = StructType([StructField("cell", BinaryType())])
VALUE = StructType([StructField("value", BinaryType())])


class StateServer:
    """Answers the calls of one map state, as the one in the JVM does: in their order.

    Args:
        listening: A socket that listens.
    """

    def __init__(self, listening: socket.socket) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.refused: set[bytes] = set()
        self.together = 1
        """The requests that it awaits before it answers the first one."""
        self.most_together = 0
        self._listening = listening
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection, connection.makefile("rwb") as file:
            waiting: list[Any] = []
            while (version := file.read(4)) == bytes(4):
                request = messages.StateRequest()
                request.ParseFromString(file.read(int.from_bytes(file.read(4), "big")))
                waiting.append(request.stateVariableRequest.mapStateCall)
                self.most_together = max(self.most_together, len(waiting))
                if len(waiting) < self.together:
                    continue
                for call in waiting:
                    answer = self._answer(call).SerializeToString()
                    file.write(len(answer).to_bytes(4, "big") + answer)
                    file.flush()
                waiting.clear()
            assert version == b"", "every message begins with its version"

    def _answer(self, call: Any) -> Any:
        method = call.WhichOneof("method")
        (key,) = pickle.loads(getattr(call, method).userKey)
        assert (call.stateName, type(key)) == ("cells", bytes)
        if key in self.refused:
            return messages.StateResponse(statusCode=1, errorMessage=f"no {key!r}")
        if method == "getValue":
            found = self.entries.get(key)
            return messages.StateResponse(value=b"" if found is None else pickle.dumps((bytearray(found),)))
        if method == "updateValue":
            (self.entries[key],) = pickle.loads(call.updateValue.value)
        else:
            assert method == "removeKey"
            self.entries.pop(key, None)
        return messages.StateResponse()


@contextmanager
def served() -> Iterator[tuple[StateServer, MapState]]:
    """Yield a state server, and PySpark's map state on it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = StateServer(listening)
        client = StatefulProcessorApiClient(listening.getsockname()[1], StructType([StructField("key", IntegerType())]))
        try:
            yield server, MapState(MapStateClient(client, CELL, VALUE), "cells")
        finally:
            client.sockfile.close()
            client._client_socket.close()
            server.thread.join(WAIT_S)
            assert not server.thread.is_alive(), f"the server has not ended within {WAIT_S:g} s"


def test_what_is_written_together_is_read_together_and_by_the_client_of_pyspark() -> None:
    with served() as (server, state):
        entries = entries_of(state, SystemClock().monotonic_s)
        assert isinstance(entries, PipelinedEntries)
        values = {b"%d" % number: b"v" * number for number in range(200)}
        entries.write(dict(values))
        assert server.entries == values
        assert entries.get_all([*values, b"unknown"]) == [*values.values(), None]
        plain = MapStateEntries(state, SystemClock().monotonic_s)
        assert plain.get_all([b"7", b"unknown"]) == [values[b"7"], None]
        plain.write({b"7": b"new", b"8": None})
        assert entries.get_all([b"7", b"8", b"9"]) == [b"new", None, values[b"9"]]
        entries.write({b"7": None, b"9": b""})
        assert (entries.get(b"7"), entries.get(b"9"), plain.get(b"9")) == (None, b"", b"")


@pytest.mark.parametrize("together", [1, WRITES_AHEAD])
def test_writes_of_any_size_are_sent_before_their_answers_are_read(together: int) -> None:
    with served() as (server, state):
        server.together = together
        entries = PipelinedEntries(state, SystemClock().monotonic_s)
        large = {b"%d" % number: bytes(100_000) for number in range(3 * WRITES_AHEAD)}
        entries.write(dict(large))
        assert (server.entries, server.most_together) == (large, together)


def test_reads_are_sent_before_their_answers_are_read_whatever_the_size_of_these() -> None:
    with served() as (server, state):
        server.entries = {b"%d" % number: bytes(100_000) for number in range(2 * READS_AHEAD)}
        server.together = READS_AHEAD
        found = PipelinedEntries(state, SystemClock().monotonic_s).get_all(server.entries)
        assert (found, server.most_together) == (list(server.entries.values()), READS_AHEAD)


def test_an_access_that_the_server_refuses_is_an_error_and_the_others_are_answered() -> None:
    with served() as (server, state):
        server.refused = {b"3", b"5"}
        entries = PipelinedEntries(state, SystemClock().monotonic_s)
        with pytest.raises(PySparkRuntimeError, match="no b'3'"):
            entries.write({b"%d" % number: b"v" for number in range(8)})
        with pytest.raises(PySparkRuntimeError, match="no b'5'"):
            entries.get_all([b"4", b"5"])
        assert entries.get_all([b"4", b"6"]) == [b"v", b"v"]
