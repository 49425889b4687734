"""Order per key with a broker, over a restore from the changelog alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker import unique
from tests.integration.messages import Given, Pairs, native, now_ms, one_sidecar

pytestmark = pytest.mark.broker

BEHIND = 20


def test_messages_wait_for_an_earlier_one_of_their_key_over_a_restore(bootstrap: str, tmp_path: Path) -> None:
    marker, other = unique("m").encode(), unique("m").encode()
    with one_sidecar(bootstrap, tmp_path, ORDER="key") as world:
        stage, sidecar = world.stage, world.sidecar
        far_ms = now_ms() + 3_600_000
        far: Pairs = [("retry-origin-topic", stage.origin.encode()), ("retry-due-ms", b"%d" % far_ms), ("test", marker)]
        first, *_ = world.send(
            Given(b"0", b"k", far),
            *(Given(b"%d" % each, b"k", native(stage, marker, 1)) for each in range(1, BEHIND + 1)),
            Given(b"other", b"l", native(stage, other, 1_000)),
        )
        # It is due after the others, so by then they wait behind the first one.
        world.fired(other)
        sidecar.stop()
        shutil.rmtree(sidecar.state_dir)
        sidecar.start()
        sidecar.await_ready()
        again = unique("m").encode()
        world.send(
            Given(b"k again", b"k", native(stage, again, 1)), Given(b"l again", b"l", native(stage, other, 1_000))
        )
        world.fired(other, 2)

        target = b"%d-%d-%d" % (first.partition, first.offset, far_ms)
        fire: Pairs = [("retry-control", b"fire"), ("retry-target", target), ("retry-control-id", again)]
        world.send(Given(None, None, fire))
        world.fired(again)
        assert [record.value for record in world.fired(marker, BEHIND + 1)] == [b"%d" % at for at in range(BEHIND + 1)]
