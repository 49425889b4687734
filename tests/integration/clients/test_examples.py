"""The example applications in every language do the same, on a real broker with a real sidecar.

Those in Python run with all tests. `make test-clients` builds and runs all whose language is on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.clients.ledger import Application, play
from tests.integration.messages import World, one_sidecar
from tests.integration.sidecars import ROOT

pytestmark = pytest.mark.broker

EXAMPLES = ROOT / "clients" / "examples"


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("clients"), DELAYS="100ms,100ms,100ms") as world:
        yield world


@pytest.mark.parametrize("name", ["confluent", "confluent_asyncio", "aiokafka_asyncio"])
def test_an_example_in_python_balances_the_ledger(world: World, tmp_path: Path, name: str) -> None:
    pytest.importorskip(name.partition("_")[0].replace("confluent", "confluent_kafka"))
    application = Application(name, [sys.executable, EXAMPLES / "python" / f"{name}.py"], world, tmp_path)
    try:
        play(application, world, {"PYTHONPATH": str(ROOT / "clients" / "python")})
    finally:
        application.end()
        print(application.said())
