"""Schemathesis against a running sidecar: no request that it makes up has an answer that is not documented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.broker import unique
from tests.integration.messages import Given, World, native, one_sidecar
from tests.integration.sidecars import Stage
from tests.unit.api.test_api_schema import BEYOND_SCHEMA
from tests.waiting import eventually

pytestmark = pytest.mark.broker

TOKEN: Final = "a-token-of-the-tests"
EXAMPLES: Final = 10
RUN_S: Final = 900
BEYOND_SCHEMA_LIVE: Final = {
    # How many partitions there are, and which topics.
    ("GET", "/pending"): ("positive_data_acceptance",),
    ("DELETE", "/pending/messages/{target}"): ("positive_data_acceptance",),
    ("PATCH", "/pending/messages/{target}"): ("positive_data_acceptance", "unsupported_method"),
    ("POST", "/pending/messages/{target}/fire"): ("positive_data_acceptance",),
    # The example of a control id is used more than once.
    ("PUT", "/origins/{topic}/pause"): ("positive_data_acceptance",),
    ("PUT", "/origins/{topic}/resume"): ("positive_data_acceptance",),
    # A body where none belongs is refused before the method is looked at.
    ("PUT", "/admin/loggers/{name}"): ("unsupported_method",),
    # To delete a redrive is to stop it: its status stays.
    ("POST", "/dlq/redrives"): ("unsupported_method", "use_after_free"),
    ("POST", "/dlq/discards"): ("unsupported_method", "positive_data_acceptance"),
    ("GET", "/dlq/redrives/{run}"): ("use_after_free",),
    ("DELETE", "/dlq/redrives/{run}"): ("use_after_free",),
}
"""What a document cannot say of one instance, by call."""
MARKER: Final = unique("m").encode()
EXPECTED: Final = '["2xx", "3xx", "4xx", "503"]'
"""Not 500 and not 502. 503 says that the brokers or an owner do not answer, or that there are too many requests."""


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("schema"), API_TOKEN=TOKEN) as made:
        waiting = [Given(headers=native(made.stage, MARKER, 3_600_000, ("retry-id", b"order"))) for _ in range(20)]
        dead = [Given(headers=[("test", MARKER)]) for _ in range(5)]
        made.send(*waiting, *dead)
        eventually(lambda: made.sidecar.pending() == len(waiting), 60, "they wait")
        made.dead(MARKER, len(dead))
        yield made


def configuration(stage: Stage) -> str:
    """Return what a document cannot say, as Schemathesis reads it."""
    beyond: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for known in (BEYOND_SCHEMA, BEYOND_SCHEMA_LIVE):
        for operation, checks in known.items():
            beyond[operation].update(checks)
    lines = [
        f"checks.not_a_server_error.expected-statuses = {EXPECTED}",
        "[parameters]",
        f'"path.connector" = "{stage.app_id}"',
        '"path.target" = "id:order"',
        f'"path.topic" = "{stage.origin}"',
        f'"query.topic" = "{stage.dlq_topic}"',
    ]
    for (method, path), unasked in beyond.items():
        lines += ["[[operations]]", f'include-name = "{method} {path}"']
        lines += [f"checks.{check}.enabled = false" for check in sorted(unasked)]
    return "\n".join(lines)


@pytest.mark.timeout(RUN_S + 60)
def test_schemathesis_finds_nothing(world: World, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(configuration(world.stage), encoding="utf-8")
    url = f"http://127.0.0.1:{world.sidecar.port}/openapi.json"
    found = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", url),
            *("--header", f"Authorization: Bearer {TOKEN}", "--max-examples", str(EXAMPLES), "--seed", "1"),
            *("--continue-on-failure", "--request-timeout", "60"),
        ],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr[-2_000:]
    tested = re.search(r"Selected: (\d+)/\1\s+Tested: (\d+)", found.stdout)
    assert tested, found.stdout
    assert tested[1] == tested[2], "every call was tested"
    eventually(lambda: world.sidecar.ready() or "paused" in str(world.sidecar.get("/readyz")), RUN_S, "it works on")
