"""The fake earlier version of the upgrade tests writes that version's bytes, and reads today's."""

from __future__ import annotations

import pytest

from sidecar.changelog import codec
from tests.golden.examples import BASED, CHECKPOINT, path_of
from tests.integration.former import use_former_format


def test_its_bytes_are_those_of_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    todays = codec.encode_checkpoint(BASED)
    for name in ("_checkpoint_encoder", "_checkpoint_decoder"):
        monkeypatch.setattr(codec, name, getattr(codec, name))
    use_former_format()
    golden = bytes.fromhex(path_of("checkpoint-value").read_text(encoding="ascii"))
    assert codec.encode_checkpoint(CHECKPOINT) == golden
    assert codec.encode_checkpoint(BASED) == golden
    assert codec.decode_checkpoint(todays) == CHECKPOINT
