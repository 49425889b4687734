from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sidecar.engine.crossings import Crossings
from sidecar.engine.items import Item
from sidecar.wheel.counts import SlotKey

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
    count: Callable[[SlotKey, Mapping[str, int]], None],
    lane_prefix: bytes,
    ordered: dict[bytes, bytes],
    crossings: Crossings,
) -> int: ...
def pack(level: int, entries: list[bytes], origins: list[str], bytes_max: int) -> Sequence[bytes] | None: ...
