"""The example applications in every language do the same, on a real broker with a real sidecar.

Those in Python run with all tests. `make test-clients` builds and runs all whose language is on this machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.clients.ledger import Application, play
from tests.integration.messages import World, one_sidecar
from tests.integration.sidecars import ROOT

pytestmark = pytest.mark.broker

EXAMPLES = ROOT / "clients" / "examples"
CLASSPATH = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
BUILD_S = 900
"""Build tools download the libraries the first time."""

Command = Sequence[str | Path]


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


def build(folder: Path, *command: str | Path) -> None:
    """Run a build tool."""
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert built.returncode == 0, built.stdout + built.stderr


def maven(example: str, *options: str) -> Callable[[Path], Command]:
    """Return what makes the command of an example in Java, which runs from its source."""

    def command(folder: Path) -> Command:
        libraries = folder / "classpath"
        build(EXAMPLES / example, "mvn", "-q", "-B", CLASSPATH, f"-Dmdep.outputFile={libraries}", *options)
        (source,) = (EXAMPLES / example).glob("*.java")
        return ["java", "-Xmx256m", "-cp", libraries.read_text(encoding="utf-8"), source]

    return command


def go(folder: Path) -> Command:
    build(EXAMPLES / "go", "go", "build", "-o", folder / "consumer", ".")
    return [folder / "consumer"]


def node(folder: Path) -> Command:
    """Build in another folder: npm puts its libraries beside the source."""
    for name in ("package.json", "main.js"):
        shutil.copy(EXAMPLES / "node" / name, folder)
    build(folder, "npm", "install", "--no-audit", "--no-fund")
    return ["node", folder / "main.js"]


FOREIGN = {
    "java": (("java", "mvn"), maven("java")),
    "spring-3.3": (("java", "mvn"), maven("spring", "-Dspring-kafka.version=3.3.16")),
    "spring-4": (("java", "mvn"), maven("spring")),
    "go": (("go",), go),
    "node": (("node", "npm"), node),
}


@pytest.mark.timeout(BUILD_S * 2)
@pytest.mark.parametrize("name", FOREIGN)
def test_an_example_in_another_language_balances_the_same_ledger(world: World, tmp_path: Path, name: str) -> None:
    tools, command = FOREIGN[name]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"not in the PATH: {', '.join(missing)}; install them to build this example")
    null_header = b"" if name == "node" else None
    application = Application(name, command(tmp_path), world, tmp_path, null_header)
    try:
        play(application, world, {})
    finally:
        application.end()
        print(application.said())


def test_an_example_is_one_short_file() -> None:
    sources = [path for path in EXAMPLES.rglob("*.*") if path.suffix in {".py", ".java", ".go", ".js", ".cs"}]
    assert sources
    assert [path for path in sources if len(path.read_text(encoding="utf-8").splitlines()) > 80] == []
