"""The sidecar with the checkpoint of an earlier version: it writes fewer fields, and passes over those that it does not
know.

    python -m tests.integration.former
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import astuple, fields

from sidecar import cli
from sidecar.changelog import codec
from sidecar.changelog.codec import Checkpoint
from tests.integration.sidecars import Command

FORMER: Final[Command] = ("-m", "tests.integration.former")
FORMER_FIELDS: Final = 10

_Former: Final[Any] = msgspec.defstruct(
    "Former", [(field.name, field.type) for field in fields(Checkpoint)[:FORMER_FIELDS]], array_like=True
)


class _Encoder:
    def encode(self, checkpoint: Checkpoint) -> bytes:
        return msgspec.msgpack.encode(astuple(checkpoint)[:FORMER_FIELDS])


class _Decoder:
    def decode(self, body: bytes | memoryview) -> Checkpoint:
        return Checkpoint(*astuple(msgspec.msgpack.decode(body, type=_Former)))


def use_former_format() -> None:
    """Write and read checkpoints as the earlier version did, in this process."""
    codec.__dict__.update(_checkpoint_encoder=_Encoder(), _checkpoint_decoder=_Decoder())


if __name__ == "__main__":
    use_former_format()
    cli.main(["run"])
