"""What `--help`, `--version` and completion show, for every command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sidecar import __version__, cli
from sidecar.settings import GROUPS, SETTINGS

ROOT = Path(__file__).parents[3]


def leaves(
    group: click.Group = cli.main, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is no group, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name), command


LEAVES = dict(leaves())


def shown(*words: str) -> str:
    result = CliRunner().invoke(cli.main, [*words, "--help"], terminal_width=200)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_an_example_of_itself(words: tuple[str, ...]) -> None:
    assert f"retry-sidecar {' '.join(words)}" in shown(*words).partition("Example:")[2]


def test_every_setting_is_in_one_group() -> None:
    grouped = [attribute for group in GROUPS.values() for attribute in group]
    assert sorted(grouped) == sorted(setting.attribute for setting in SETTINGS)


def test_help_of_run_shows_every_setting_by_group_and_the_most_used_first() -> None:
    text = shown("run")
    assert [setting.flag for setting in SETTINGS if f"  {setting.flag}" not in text] == []
    titles = [title for title, attributes in GROUPS.items() if attributes]
    places = [text.index(f"\n{title}:\n") for title in ("Options", *titles)]
    assert places == sorted(places)
    assert text.index("--bootstrap-servers") < text.index("--security-protocol") < text.index("--input-topic")


@pytest.mark.parametrize(
    ("words", "used", "unused"),
    [
        (("run",), ("--origin-topics", "--api-token", "--http-host"), ()),
        (("api",), ("--api-token", "--http-port", "--log-level"), ("--state-dir", "--delays", "--commit-max-messages")),
        (("dlq", "report"), ("--dlq-topic", "--bootstrap-servers"), ("--state-dir", "--http-port", "--delays")),
        (("dlq", "redrive"), ("--dlq-topic", "--input-topic"), ("--state-dir", "--http-port")),
        (("cancel",), ("--api-token", "--streams-app-id"), ("--state-dir", "--delays", "--dlq-topic")),
        (("health",), ("--http-port", "--http-host"), ("--bootstrap-servers", "--state-dir", "--client")),
        (("pending",), ("--http-port", "--api-token"), ("--bootstrap-servers", "--state-dir")),
        (("policy", "explain"), ("--delays", "--max-attempts"), ("--bootstrap-servers", "--http-port")),
        (("send",), ("--input-topic",), ("--state-dir", "--http-port", "--delays")),
        (("state", "inspect"), ("--state-dir", "--store-name"), ("--http-port", "--delays")),
        (("topics", "create"), ("--replication-factor",), ("--state-dir", "--http-port")),
        (("spark", "run"), ("--origin-topics", "--api-token"), ("--state-dir", "--commit-interval-ms")),
        (("version",), (), ("--bootstrap-servers", "--config")),
    ],
)
def test_help_shows_the_settings_that_the_command_uses(
    words: tuple[str, ...], used: tuple[str, ...], unused: tuple[str, ...]
) -> None:
    flags = {word for line in shown(*words).splitlines() for word in line.strip().replace(",", " ").split()[:1]}
    assert set(used) <= flags
    assert not flags & set(unused)


def test_a_setting_that_help_hides_is_a_flag_all_the_same() -> None:
    result = CliRunner().invoke(cli.main, ["policy", "check", "--state-dir", "/nowhere", "--http-port", "http"])
    assert result.exit_code == 2
    assert "HTTP_PORT" in result.stderr


def test_the_version_is_an_option_too() -> None:
    result = CliRunner().invoke(cli.main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"retry-sidecar {__version__}\n")


@pytest.mark.parametrize("words", [words for words in LEAVES if words not in {("api",), ("spark", "run")}])
def test_every_command_that_prints_data_can_print_json(words: tuple[str, ...]) -> None:
    """All but the two that only log: their log is JSON with `--log-format json`."""
    assert "--json" in {flag for parameter in LEAVES[words].params for flag in parameter.opts}


# Completion


def test_commands_are_completed_without_the_import_of_any() -> None:
    code = (
        "import sys\nfrom sidecar import cli\n"
        "found = cli.main.shell_complete(cli.main.make_context('retry-sidecar', [], resilient_parsing=True), 'p')\n"
        "print(*(each.value for each in found))\n"
        "sys.exit(str({'confluent_kafka', 'rich', 'sidecar.settings'} & set(sys.modules) or ''))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.stderr.strip()) == (["pending", "pause", "policy"], "")


SHELLS = {
    "bash": (
        'eval "$script"\ncomplete -p retry-sidecar >/dev/null || exit 9\n'
        "COMP_WORDS=(retry-sidecar dlq re) COMP_CWORD=2\n"
        "_retry_sidecar_completion retry-sidecar\n"
        'echo "${COMPREPLY[@]}"'
    ),
    "zsh": (
        "words=(retry-sidecar dlq re) CURRENT=3\n"
        "compdef() { compdef_of=$2; }\n"
        '_describe() { for each in "${(@P)3}"; do print -n -- "${each%%:*} "; done }\n'
        'eval "$script"\n[ "$compdef_of" = retry-sidecar ] && _retry_sidecar_completion'
    ),
    "fish": 'eval "$script"\ncomplete --do-complete "retry-sidecar dlq re" | string replace -r "\\t.*" ""',
}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_completes_there(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} in the PATH: apt-get install {shell}")
    command = tmp_path / "retry-sidecar"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidecar "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    script = subprocess.run(
        [command],
        env={**environ, "_RETRY_SIDECAR_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    done = subprocess.run(
        [program, "-c", SHELLS[shell]],
        env={**environ, "script": script},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert sorted(done.stdout.split()) == ["redrive", "report"], done
