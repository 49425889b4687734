"""A partition's changelog and a state folder as this version wrote them, and what waited then.

`changelog.txt` has a record a line: offset, key and value in hexadecimal, `-` for a tombstone. `pending.txt` has a
waiting message a line: offset, first due and the due that was asked for last. `state-folder.tar.gz` is the folder as it
was two thirds through the changelog. They are made from a world of the simulation and stay as they are: what they hold
is in people's topics and folders.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sidecar.changelog.entry import head
from sidecar.engine.ports import Mutations
from sidecar.engine.restore import ChangelogRead
from sidecar.store.rocks import RocksStore
from tests.simulation.limits import small_limits
from tests.simulation.world import World

FOLDER: Final = Path(__file__).parent
CHANGELOG: Final = FOLDER / "changelog.txt"
PENDING: Final = FOLDER / "pending.txt"
STATE_FOLDER: Final = FOLDER / "state-folder.tar.gz"

_SEED: Final = 20
_ROUNDS: Final = 24
_ACTS: Final = (World.send, World.send, World.command, World.shuffle_one_timer, World.pause, World.take_step)


def read_changelog() -> list[ChangelogRead]:
    """Return the records on file."""
    lines = (line.split() for line in CHANGELOG.read_text(encoding="ascii").splitlines())
    return [
        ChangelogRead(int(offset), bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
        for offset, key, value in lines
    ]


def read_pending() -> list[tuple[int, ...]]:
    """Return offset, first due and due of each message that waited, in order."""
    return [tuple(map(int, line.split())) for line in PENDING.read_text(encoding="ascii").splitlines()]


def pending_of(entries: Iterable[bytes]) -> list[tuple[int, ...]]:
    """Return the same of stored entries."""
    return sorted((fixed.offset, fixed.first_ms, fixed.requested_ms) for fixed in map(head, entries))


def unpack_state_folder(into: Path) -> None:
    """Put the folder on file there."""
    with tarfile.open(STATE_FOLDER) as packed:
        packed.extractall(into, filter="data")


def write() -> None:
    """Write the three files."""
    with small_limits():
        world = World(_SEED)
        for number in range(_ROUNDS):
            for act in _ACTS:
                act(world)
            world.now_ms = world.greatest_ms = world.now_ms + 700
            if number == _ROUNDS * 2 // 3:
                _pack(dict(world.store.rows))
    lines = (
        f"{each.offset} {(each.key or b'').hex()} {'-' if each.value is None else each.value.hex()}\n"
        for each in world.log.records
    )
    CHANGELOG.write_text("".join(lines), encoding="ascii")
    waiting = sorted((*key, timer.requested_ms) for key, timer in world.ledger.pending.items())
    PENDING.write_text("".join(f"{' '.join(map(str, each))}\n" for each in waiting), encoding="ascii")


def _pack(rows: dict[bytes, bytes]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        store = RocksStore(Path(temporary))
        written = Mutations()
        written.rows.update(rows)
        store.apply([written])
        store.flush()
        store.close()
        with tarfile.open(STATE_FOLDER, "w:gz") as packed:
            for path in sorted(Path(temporary).iterdir()):
                if not path.name.startswith(("LOG", "LOCK")):
                    packed.add(path, path.name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
