from collections.abc import Callable, Iterator
from typing import Any

from sidecar.model import Record

class Records(Iterator[Record]):
    most_headers: int
    def __init__(self, messages: list[Any], report: Callable[[Any, int | None], None]) -> None: ...
    def __iter__(self) -> Records: ...
    def __next__(self) -> Record: ...
