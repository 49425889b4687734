"""The consumer that README and documentation show is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, README, ROOT, blocks
from tests.integration.messages import Given, send
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

PAGES = (README, DOCS / "how-to" / "clients.md", ROOT / "clients" / "python" / "README.md")


def consumer_of(page: Path) -> str:
    """Return the block of a page that is a whole consumer."""
    (found,) = [each.text for each in blocks(page) if each.language == "python" and ".subscribe(" in each.text]
    return found


def test_all_pages_show_the_same_consumer() -> None:
    assert len({consumer_of(page) for page in PAGES}) == 1


def test_the_consumer_of_the_readme_handles_what_comes_back(stage: Stage, sidecars: Sidecars, tmp_path: Path) -> None:
    text = consumer_of(README)
    names = {"localhost:9092": stage.bootstrap, '"retry"': f'"{stage.input_topic}"', '"orders"': f'"{stage.origin}"'}
    assert all(name in text for name in names)
    program = tmp_path / "consumer.py"
    program.write_text(re.sub("|".join(names), lambda found: names[found[0]], text), encoding="utf-8")
    sidecars.start("one", stage, DELAYS="100ms")
    said = tmp_path / "said.txt"
    with said.open("wb") as out:
        consumer = subprocess.Popen([sys.executable, program], stdout=out, stderr=out)
    try:

        def handled() -> bool:
            # The group begins at the end of the topic, wherever that is when it joins.
            send(stage.bootstrap, stage.origin, Given(b"v", b"k", []))
            assert consumer.poll() is None, said.read_text()
            return "handled at attempt 1" in said.read_text()

        eventually(handled, 120, "a message comes back and is handled")
    finally:
        consumer.kill()
        consumer.wait()
