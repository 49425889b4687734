from collections.abc import Callable
from typing import Any, Literal

from sidecar.engine.ports import Outgoing

class Redriver:
    def __init__(
        self,
        judge: Callable[[bytes, bytes, bytes, bytes | None], bool | None],
        *,
        topic: str,
        partitions: int,
        bytes_max: int,
        max_redrives: int,
    ) -> None: ...
    def again(self, record: tuple[Any, ...], due_ms: int) -> Outgoing | Literal[False] | None: ...
