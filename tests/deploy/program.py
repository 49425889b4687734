"""The program as a container would start it, and its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from sidecar import cli
from sidecar.settings import Row

_LONGEST_S: Final = 60
_ADVICE: Final = "answer 403 until API_TOKEN is set"


def effective(arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, Row]:
    """Return the effective settings of a container that is started so, by name.

    Raises:
        AssertionError: The program does not take them, or doubts more than that there is no token.
    """
    done = start([*arguments, "--show-settings", "--json"], environ)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if _ADVICE not in line] == []
    return {each["name"]: Row(**each) for each in json.loads(done.stdout)["settings"]}


def start(arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, with no other KAFKA_RETRY_* than these."""
    return subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ},
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )


def parse(arguments: Sequence[str]) -> str:
    """Return the command that this command line names, such as `topics create`.

    Raises:
        click.UsageError: It cannot be read.
    """
    names: list[str] = []
    command: click.Command = cli.main
    rest = list(arguments)
    while isinstance(command, click.Group):
        with command.make_context(" ".join(names) or "retry-sidecar", rest) as context:
            name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None
        assert found is not None
        names.append(name)
        command = found
    command.make_context(" ".join(names), rest).close()
    return " ".join(names)


def usage_is_wrong(arguments: Sequence[str]) -> bool:
    """Tell whether the command line cannot be read."""
    try:
        parse(arguments)
    except click.UsageError:
        return True
    return False
