"""The fake earlier version of the upgrade tests writes fewer fields, and each version reads the other."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import astuple

from sidecar.changelog import codec
from sidecar.changelog.codec import Checkpoint
from tests.golden.examples import CHECKPOINT
from tests.integration.former import FORMER_FIELDS, use_former_format

READ = Checkpoint(*astuple(CHECKPOINT)[:FORMER_FIELDS])


def test_fields_that_one_version_does_not_write_have_their_defaults_in_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    todays = codec.encode_checkpoint(CHECKPOINT)
    with monkeypatch.context() as patched:
        for name in ("_checkpoint_encoder", "_checkpoint_decoder"):
            patched.setattr(codec, name, getattr(codec, name))
        use_former_format()
        former = codec.encode_checkpoint(CHECKPOINT)
        assert codec.decode_checkpoint(todays) == READ != CHECKPOINT
    assert len(msgspec.msgpack.decode(former[codec._FRAME.size :])) == FORMER_FIELDS
    assert codec.decode_checkpoint(former) == READ
