from collections.abc import Callable, Iterable

from sidecar.engine.deliver import Due

def read_plain(
    number: int,
    entries: Iterable[bytes],
    origins: dict[bytes, str],
    slow: Callable[[bytes], Due],
    headers_left: int,
    keeps_entries: bool,
    lane_prefix: bytes,
) -> tuple[list[Due], int]: ...
