"""The commands of README and docs are run in order, page by page, against one broker and one sidecar.

What a block cannot do here it says itself (`not-run="…"`, see pages.py); those of the README are named below, since
other pages show its text, and not all of them understand marks.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.errors import CommandFailed
from tests import broker as broker_of_tests
from tests.deploy import tools
from tests.docs import acls
from tests.docs.pages import DOCS, PAGES, README, ROOT, Block, blocks, dialogues, mentions
from tests.integration.sidecars import Sidecar, Stage
from tests.waiting import eventually

NOT_RUN_IN_README = {
    ".venv/bin/retry-sidecar demo --keep --port 9092 --http-port 8080": "test_demo.py runs it",
    ".venv/bin/retry-sidecar tail orders --last 1000": "it goes on for ever; test_round_trip_command.py runs it",
    ".venv/bin/retry-sidecar pending --watch": "it goes on for ever; test_pending_command.py runs it",
}
UNKNOWN_IN_README = "id:order-4711"
"""The commands before have cancelled this message: those that name it say so, with exit status 1."""
STAYING = {"run": "readiness_gained", "api": "http_listening", "broker": "is up"}
"""Commands that stay until they are told to stop, and what they say when they have begun."""
LOOKING = {"get", "list"}
"""What these say may come a moment after what was sent: they are asked again until they end as they should."""
ACTING = {"cancel", "fire", "pause", "reschedule", "resume"}
PATIENT = ("--timeout", "60")
"""What acts waits 5 s for its answer, which a machine that stands still exceeds."""
PARSED = ("make", "pip", "kafka-acls.sh")
"""Programs whose commands are held against what they speak of, and not run."""
NOT_COMMANDS = {"retry-sidecar status"}
"""A part of what is signed has the form of a command."""
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@dataclass(frozen=True, slots=True)
class World:
    """A broker, a sidecar under the default names, and the environment in which its operator works."""

    bootstrap: str
    sidecar: Sidecar
    environment: dict[str, str]
    folder: Path

    def await_rest(self) -> None:
        """Wait until the sidecar has all partitions, which it shares with others that a page starts."""
        eventually(self._rests, 60, "the sidecar has its partitions again")

    def _rests(self) -> bool:
        shown = self.sidecar.group()
        return bool(shown and shown["complete"] and all(each["state"] == "running" for each in shown["partitions"]))

    def here(self, text: str) -> str:
        """Return a command, or a program, with the addresses of this world."""
        text = re.sub(r"\b(kafka|localhost|127\.0\.0\.1):9092\b", self.bootstrap, text)
        text = re.sub(r"\b(localhost|127\.0\.0\.1):8080\b", f"127.0.0.1:{self.sidecar.port}", text)
        return re.sub(r"--(http-)?port \d+", r"--\1port 0", text).replace(".venv/bin/", "")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("docs")
    broker = LocalBroker()
    sidecar = None
    try:
        broker.start()
        address = broker.bootstrap_servers
        # As the demo leaves it, which the pages begin with.
        for topic, partitions in (("retry", 4), ("dlq", 1), ("orders", 2), ("payments", 2), ("emails", 2)):
            broker_of_tests.create_topic(address, topic, partitions)
        names = {"INPUT_TOPIC": "retry", "DLQ_TOPIC": "dlq", "ORIGIN_TOPICS": "orders,payments,emails"}
        sidecar = Sidecar("sidecar", Stage(address, "kafka-retry"), folder, names)
        sidecar.start()
        sidecar.await_ready()
        own = {"BOOTSTRAP_SERVERS": address, "HTTP_PORT": str(sidecar.port), "STATE_DIR": str(folder / "operator")}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_RETRY_")}
        environment = {**clean, **{f"KAFKA_RETRY_{name}": value for name, value in own.items()}}
        environment["XDG_STATE_HOME"] = str(folder / "home")
        world = World(address, sidecar, environment, folder)
        world.await_rest()
        yield world
    except CommandFailed as error:
        broker_of_tests.no_broker(str(error))
    finally:
        if sidecar is not None:
            sidecar.end()
        broker.stop()


def runs_here(block: Block) -> bool:
    """Tell whether anything of a block is run."""
    return "not-run" not in block.marks and "acl" not in block.marks


@pytest.mark.broker
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(map(runs_here, dialogues(page)))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_do_what_it_says(page: Path, world: World) -> None:
    for block in blocks(page):
        if block.language == "python" and "run" in block.marks:
            exec(compile(world.here(block.text), str(block), "exec"), {})  # our own page
        elif block.language == "console" and runs_here(block):
            run_block(block, world)


def run_block(block: Block, world: World) -> None:
    """Run its commands, the last of which may end with a status that the block names."""
    for number, command in enumerate(block.commands):
        if block.page == README and command in NOT_RUN_IN_README:
            continue
        last = number == len(block.commands) - 1
        status = int(block.marks.get("exit", "0")) if last else 0
        if block.page == README and command.startswith("retry-sidecar ") and UNKNOWN_IN_README in command:
            status = 1
        if command.removeprefix("retry-sidecar ").split()[0] in LOOKING:
            eventually(partial(ends, status, world.here(command), world), 30, f"{block}: {command}: status {status}")
            continue
        said = run(world.here(command), world)
        assert said.status == status, f"{block}: {command}: status {said.status}\n{said.text}"


def ends(status: int, command: str, world: World) -> bool:
    """Run a command and tell whether it ends with this status."""
    return run(command, world).status == status


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended."""

    status: int
    text: str


def run(command: str, world: World) -> Said:
    """Run one command: a sidecar's own in this process, which spares its start; everything else in a shell."""
    words = shlex.split(command, comments=True)
    if words[0] in PARSED:
        check_spoken_of(command, words)
        return Said(0, "")
    if words[0] == "retry-sidecar" and words[1] in STAYING and "--show-settings" not in words:
        return run_until_it_has_begun(words[1:], world)
    if words[0] == "retry-sidecar":
        patience = PATIENT if words[1] in ACTING and "--timeout" not in words else ()
        done = CliRunner(env=world.environment).invoke(main, [*words[1:], *patience])
        return Said(done.exit_code, f"{done.output}{done.exception or ''}")
    shell = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env=world.environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Said(shell.returncode, shell.stdout + shell.stderr)


def run_until_it_has_begun(arguments: list[str], world: World) -> Said:
    """Start a command that stays, stop it when it is under way, and return its exit status."""
    log_path = world.folder / f"{arguments[0]}.log"
    environment = {
        **world.environment,
        "KAFKA_RETRY_HTTP_PORT": "0",
        "KAFKA_RETRY_STATE_DIR": str(world.folder / "run"),
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sidecar", *arguments], env=environment, cwd=ROOT, stdout=log, stderr=log
        )
    try:
        eventually(
            lambda: STAYING[arguments[0]] in log_path.read_text() or process.poll() is not None, 60, "it has begun"
        )
        process.send_signal(signal.SIGTERM)
        return Said(process.wait(40), log_path.read_text())
    finally:
        process.kill()
        process.wait()
        world.await_rest()


def check_spoken_of(command: str, words: list[str]) -> None:
    """Check that what a command speaks of exists."""
    if words[0] == "make":
        missing = {word for word in words[1:] if "=" not in word} - TARGETS
        assert not missing, f"{command}: no such target in the Makefile: {missing}"
    elif words[0] == "pip":
        extras = re.findall(r"\[(.+)\]", command)
        folder = ROOT / words[-1].partition("[")[0] if words[-1].startswith("./") else ROOT
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert all(extra in project["optional-dependencies"] for extra in extras), command
    else:
        assert list(acls.bindings(command)), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_speaks_of_exists_with_its_options(page: Path) -> None:
    for mention in mentions(page):
        if mention not in NOT_COMMANDS:
            check_options(mention)


def check_options(mention: str) -> None:
    """Check command and options against the program, without running anything."""
    context = click.Context(main)
    command: click.Command = main
    arguments = shlex.split(mention)[1:]
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        found = command.get_command(context, arguments[0])
        assert found is not None, f"`{mention}`: there is no command {arguments[0]}"
        command, arguments = found, arguments[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in arguments:
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, f"`{mention}`: there is no option {word}"


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_not_run_says_why_and_still_speaks_of_what_exists(page: Path) -> None:
    for block in dialogues(page):
        assert block.commands, f"{block}: a dialogue without a command is no dialogue"
        assert block.marks.get("not-run", "-"), f"{block}: not-run needs a reason"
        for command in block.commands:
            words = shlex.split(command, comments=True)
            if words[0] in PARSED:
                check_spoken_of(command, words)


def test_tests_that_a_newcomer_is_asked_to_run_exist() -> None:
    commands = [command for block in dialogues(CONTRIBUTING) for command in block.commands]
    paths = [word for command in commands for word in shlex.split(command) if word.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_chart_renders_with_the_values_of_the_page_under_the_names_of_its_commands(tmp_path: Path) -> None:
    helm = tools.find("helm", target="helm")
    page = DOCS / "how-to/kubernetes.md"
    values = tmp_path / "values.yaml"
    values.write_text(next(block.text for block in blocks(page) if block.language == "yaml"), encoding="utf-8")
    commands = [shlex.split(command) for block in dialogues(page) for command in block.commands]
    (install,) = [words for words in commands if words[:2] == ["helm", "install"]]
    (forward,) = [words for words in commands if words[0] == "kubectl" and "port-forward" in words]
    rendered = tools.run(helm, ["template", *install[2:-1], str(values)], ROOT)
    assert rendered.returncode == 0, rendered.stderr
    services = [each for each in yaml.safe_load_all(rendered.stdout) if each and each["kind"] == "Service"]
    ports = {
        f"service/{each['metadata']['name']}": {port["port"] for port in each["spec"]["ports"]} for each in services
    }
    service, port = forward[-2], int(forward[-1].partition(":")[2])
    assert port in ports[service], ports


def test_what_the_readme_is_excused_from_stands_in_it() -> None:
    commands = {command for block in dialogues(README) for command in block.commands}
    assert commands >= NOT_RUN_IN_README.keys()
    assert any(UNKNOWN_IN_README in command for command in commands)
