"""The state of a partition in a dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sidecar.changelog.codec import RemovedKey, decode_key
from sidecar.changelog.entry import KEY, KEY_BYTES
from sidecar.spark.handover.changelog import timers_of
from sidecar.spark.state.entries import META, PAGE, decode_meta
from sidecar.spark.state.pages import removed_of


class DictState:
    """State entries as Spark keeps them."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def get(self, state_key: bytes) -> bytes | None:
        return self.entries.get(state_key)

    def put(self, state_key: bytes, value: bytes) -> None:
        self.entries[state_key] = value

    def put_new(self, state_key: bytes, value: bytes) -> None:
        assert state_key not in self.entries, "an entry that exists is not new"
        self.put(state_key, value)

    def remove(self, state_key: bytes) -> None:
        self.entries.pop(state_key, None)

    def fetch(self, state_keys: Iterable[bytes]) -> None:
        """Read nothing ahead."""

    def get_all(self, state_keys: Iterable[bytes]) -> list[bytes | None]:
        return [self.get(state_key) for state_key in state_keys]

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        for state_key, value in changes.items():
            if value is None:
                self.remove(state_key)
            else:
                self.put(state_key, value)


def pending(state: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the pending timers of a state by their keys, as an export or an audit finds them."""
    removed = set()
    for key, _ in removed_in(state):
        decoded = decode_key(key)
        assert isinstance(decoded, RemovedKey)
        removed.add(KEY.pack(decoded.due_ms, decoded.offset))
    checkpoint = decode_meta(state[META]).checkpoint
    watermark = KEY.pack(checkpoint.watermark_ms, checkpoint.watermark_offset)
    blocks = (value for state_key, value in state.items() if state_key[:1] == b"b")
    entries = [entry for block in blocks for entry in timers_of(block, watermark)]
    found = {entry[:KEY_BYTES]: entry for entry in entries}
    assert len(found) == len(entries), "no timer is in two blocks"
    return {key: entry for key, entry in found.items() if key not in removed}


def removed_in(state: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the changelog records for removed timers."""
    for state_key, value in state.items():
        if state_key[:1] == b"p":
            yield from removed_of(PAGE.decode(value))
