from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sidecar.engine.items import Arrival, Item
from sidecar.engine.ports import Origin
from sidecar.model import Record
from sidecar.wheel.counts import SlotKey

class Examiner:
    def __init__(
        self,
        origins: dict[str, Origin],
        profiles: Collection[str],
        topic_of: Callable[[bytes], str | None],
        retried: Callable[[bytes], bool],
        *,
        native_delays_ms: Sequence[int],
        native_limit: int,
        ibm_delays_ms: Sequence[int],
        ibm_limit: int,
        max_delay_ms: int,
        measures: bool,
    ) -> None: ...
    def examine(self, record: Record, arrived_ms: int) -> Arrival | None: ...

def store_plain(
    batch: list[Item],
    at: int,
    *,
    base: int,
    seen: int,
    now_ms: int,
    watermark_ms: int,
    entry_bytes_max: int,
    level_ends_ms: tuple[int, ...],
    prefix: bytes,
    rows: dict[bytes, bytes | None],
    groups: Mapping[SlotKey, Any],
    fresh: list[tuple[SlotKey, str]],
) -> int: ...
def restore_plain(rows: dict[bytes, bytes | None], prefix: bytes, entries: Sequence[bytes]) -> list[bytes]: ...
