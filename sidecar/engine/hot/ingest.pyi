from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sidecar.engine.items import Arrival, Ordered
from sidecar.engine.ports import Origin
from sidecar.model import Record

class Rules:
    def __init__(
        self,
        retried: Callable[[bytes], bool],
        *,
        native_delays_ms: Sequence[int],
        native_limit: int,
        ibm_delays_ms: Sequence[int],
        ibm_limit: int,
        ordered: bool,
    ) -> None: ...

class Examiner:
    def __init__(
        self,
        origins: dict[str, Origin],
        profiles: Collection[str],
        topic_of: Callable[[bytes], tuple[str, Rules] | None],
        *,
        max_delay_ms: int,
        measures: bool,
    ) -> None: ...
    def examine(self, record: Record, arrived_ms: int) -> Arrival | Ordered | None: ...
    def take(
        self, records: Iterator[Record], buffers: Mapping[int, Any], arrived_ms: int, bytes_each: int
    ) -> Record | None: ...

class Timers:
    def __init__(self, prefix: bytes) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...
    def add(self, value: bytes, lengths: Sequence[int], at: int) -> list[bytes]: ...
    def pour(self, rows: dict[bytes, bytes | None]) -> None: ...
