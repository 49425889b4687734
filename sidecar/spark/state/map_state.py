"""State entries in Spark's map state, many of them in one round trip.

PySpark's client waits for the answer to each access before it sends the next one, and a partition step makes dozens.
The state server in the JVM answers the requests of a connection in their order, so many are sent here before the first
answer is read.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState

READS_AHEAD: Final = 64
"""The reads that are sent before their answers are read: as requests they fit into the buffer of a socket, so neither
side waits for the other to read."""
WRITES_AHEAD: Final = 64
"""The same of writes: their answers, even if all of them are errors, fit into the buffer of a socket."""
_OK: Final = 0
_T = TypeVar("_T")


@dataclass(slots=True)
class AccessTimes:
    """What accesses to the state have taken."""

    read_s: float = 0.0
    write_s: float = 0.0
    round_trips: int = 0

    def since(self, before: AccessTimes) -> AccessTimes:
        """Return what was added to an earlier copy."""
        return AccessTimes(
            self.read_s - before.read_s, self.write_s - before.write_s, self.round_trips - before.round_trips
        )


class MapStateEntries:
    """State entries in a map state, by PySpark's own client: one round trip for each.

    Args:
        state: Key and value are structs of one binary column.
        monotonic_s: Measures what accesses take.
    """

    def __init__(self, state: MapState, monotonic_s: Callable[[], float]) -> None:
        self.times = AccessTimes()
        self._state = state
        self._monotonic_s = monotonic_s

    def get(self, state_key: bytes) -> bytes | None:
        return self.get_all((state_key,))[0]

    def put(self, state_key: bytes, value: bytes) -> None:
        self.write({state_key: value})

    def get_all(self, state_keys: Iterable[bytes]) -> list[bytes | None]:
        began_s = self._monotonic_s()
        found = self._get_all(state_keys)
        self.times.read_s += self._monotonic_s() - began_s
        return found

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        began_s = self._monotonic_s()
        self._write(changes)
        self.times.write_s += self._monotonic_s() - began_s

    def _get_all(self, state_keys: Iterable[bytes]) -> list[bytes | None]:
        found = [self._state.getValue((state_key,)) for state_key in state_keys]
        self.times.round_trips += len(found)
        return [None if each is None else bytes(each[0]) for each in found]

    def _write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for state_key, value in changes.items():
            if value is None:
                self._state.removeKey((state_key,))
            else:
                self._state.updateValue((state_key,), (value,))
        self.times.round_trips += len(changes)


class PipelinedEntries(MapStateEntries):
    """State entries in a map state of a running query: up to READS_AHEAD or WRITES_AHEAD in one round trip."""

    def __init__(self, state: MapState, monotonic_s: Callable[[], float]) -> None:
        super().__init__(state, monotonic_s)
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - it is an extra
        from pyspark.sql.streaming.proto import StateMessage_pb2  # noqa: PLC0415 - as above

        self._error = PySparkRuntimeError
        self._messages: Any = StateMessage_pb2
        self._name: str = state._stateName  # noqa: SLF001 - PySpark's client has no way to send ahead
        self._client: Any = state._mapStateClient._stateful_processor_api_client  # noqa: SLF001 - as above

    def _get_all(self, state_keys: Iterable[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for some in _parts(state_keys, READS_AHEAD):
            values = self._exchange(
                [{"getValue": self._messages.GetValue(userKey=_struct(state_key))} for state_key in some]
            )
            found += [bytes(pickle.loads(value)[0]) if value else None for value in values]  # noqa: S301 - of the JVM
        return found

    def _write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for some in _parts(changes.items(), WRITES_AHEAD):
            self._exchange([self._change(state_key, value) for state_key, value in some])

    def _change(self, state_key: bytes, value: bytes | None) -> dict[str, Any]:
        key = _struct(state_key)
        if value is None:
            return {"removeKey": self._messages.RemoveKey(userKey=key)}
        return {"updateValue": self._messages.UpdateValue(userKey=key, value=_struct(value))}

    def _exchange(self, calls: Iterable[Mapping[str, Any]]) -> list[bytes]:
        """Send calls of the map state, and return the value in the answer to each."""
        messages, client = self._messages, self._client
        sent, file = 0, client.sockfile
        for call in calls:
            request = messages.StateRequest(
                stateVariableRequest=messages.StateVariableRequest(
                    mapStateCall=messages.MapStateCall(stateName=self._name, **call)
                )
            ).SerializeToString()
            file.write(_VERSION + len(request).to_bytes(4, "big") + request)
            sent += 1
        file.flush()
        self.times.round_trips += 1
        answers = [client._receive_proto_message() for _ in range(sent)]  # noqa: SLF001 - as above
        for status, said, _ in answers:
            if status != _OK:
                raise self._error(f"Spark's state server refuses an access: {said}")
        return [value for _, _, value in answers]


_VERSION: Final = (0).to_bytes(4, "big")
"""The version of PySpark's messages, before each of them."""


def entries_of(state: MapState, monotonic_s: Callable[[], float]) -> MapStateEntries:
    """Return the entries in a map state; in a state that has no server, as in PySpark's test harness, one by one."""
    served = hasattr(getattr(state, "_mapStateClient", None), "_stateful_processor_api_client")
    return (PipelinedEntries if served else MapStateEntries)(state, monotonic_s)


def _struct(value: bytes) -> bytes:
    """Return a struct of one binary column as PySpark sends it."""
    return pickle.dumps((value,), pickle.HIGHEST_PROTOCOL)


def _parts(all_of: Iterable[_T], size: int) -> Iterator[Sequence[_T]]:
    rest = iter(all_of)
    while part := tuple(islice(rest, size)):
        yield part
