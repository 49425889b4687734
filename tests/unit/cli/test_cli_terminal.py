"""Output of commands for people: untrusted names, ids and details do not control the terminal."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.live import Live
from rich.table import Table
from rich.text import Text

import sidecar.cli
from sidecar import cli
from sidecar.cli.terminal import console, say
from sidecar.contract.control import Outcome
from sidecar.control.client import ControlResult
from sidecar.errors import CommandFailed, printable

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202egnp.exe\u2028\ud800[bold]b"
ESCAPED = r"a\x1b]0;title\x07\x1b[2J\x9b31m\r\n\u202egnp.exe\u2028\ud800[bold]b"
CLI = sorted(Path(sidecar.cli.__file__).parent.glob("*.py"))


def test_what_steers_is_escaped_and_what_is_text_stays() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable("größe 注文 \\ []") == "größe 注文 \\ []"


@pytest.mark.parametrize("err", [False, True])
def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str], err: bool) -> None:
    say(HOSTILE, err=err)
    out = capsys.readouterr()
    assert (out.err if err else out.out) == f"{ESCAPED}\n"


@pytest.mark.parametrize("as_text", [True, False])
def test_nothing_that_a_console_shows_steers_it(capsys: pytest.CaptureFixture[str], as_text: bool) -> None:
    """Even where the code of a table does not escape a cell."""
    hostile = HOSTILE.replace("\r\n", "")
    cell = Text(hostile) if as_text else hostile
    table = Table(box=None)
    table.add_column("name")
    table.add_row(cell)
    console().print(table, cell)
    with Live(table, console=console(), auto_refresh=False):
        pass
    out = capsys.readouterr().out
    assert not any(each in out for each in "\x1b\x07\x9b\u202e\u2028")
    assert r"\x1b[2J" in out
    assert "[bold]b" in out


def test_what_a_sidecar_answers_of_a_change_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ControlResult("c-1", HOSTILE, Outcome.NOT_PENDING, 0, HOSTILE, {}, ())
    monkeypatch.setattr("sidecar.cli.messages.http_control.HttpControl.lookup", lambda *_: told)
    result = CliRunner().invoke(cli.main, ["outcome", "c-1", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.count(ESCAPED) == 2
    assert "\x1b" not in result.output


def test_the_text_of_an_error_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise CommandFailed(HOSTILE)

    monkeypatch.setattr("sidecar.cli.messages.http_control.HttpControl.lookup", fail)
    result = CliRunner().invoke(cli.main, ["outcome", "c-1", "--url", "http://127.0.0.1:1"])
    assert (result.exit_code, result.stderr) == (1, f"{ESCAPED}\n")


@pytest.mark.parametrize("path", CLI, ids=lambda path: path.stem)
def test_every_command_prints_through_the_terminal_or_as_json(path: Path) -> None:
    """JSON escapes what is not ASCII by itself."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "click.echo":
            parts = list(ast.walk(call.args[0]))
            made_by = {ast.unparse(each.func) for each in parts if isinstance(each, ast.Call)}
            is_fixed = not any(isinstance(each, ast.FormattedValue | ast.Attribute) for each in parts)
            assert made_by & {"printable", "json.dumps"} or is_fixed, (
                f"{path.name}:{call.lineno}: print with say(), or escape with printable()"
            )


@pytest.mark.parametrize(
    "path", [path for path in CLI if path.stem not in {"terminal", "demo"}], ids=lambda path: path.stem
)
def test_no_command_makes_its_own_console(path: Path) -> None:
    """The demo alone does, which shows what it has made itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert path.stem == "demo" or "Console" not in {
        ast.unparse(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)
    }
