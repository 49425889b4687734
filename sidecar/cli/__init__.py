"""The command `retry-sidecar`. Command modules are imported when their command is called, so that help is quick."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from sidecar import __version__
from sidecar.errors import InvariantViolated, SettingsInvalid, SidecarError, printable

EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_BUG = 70

_REPORT = (
    "This is a bug in retry-sidecar: please report it with the lines above and the output of `retry-sidecar version`."
)


class Entry(NamedTuple):
    """The location of a command."""

    target: str
    """`module:object`."""
    summary: str
    """Its line in `retry-sidecar --help`."""


COMMANDS = {
    "run": Entry("sidecar.cli.run:run", "Run the sidecar until SIGTERM or Ctrl-C."),
    "api": Entry("sidecar.cli.api:api", "Serve the HTTP API of the whole group without owning partitions."),
    "demo": Entry("sidecar.cli.demo:demo", "Run Kafka, a sidecar and a failing application, and check every message."),
    "broker": Entry("sidecar.cli.broker:broker", "Run a local Apache Kafka, without Docker."),
    "topics": Entry("sidecar.cli.topics:topics", "Create or check the topics."),
    "send": Entry("sidecar.cli.send:send", "Send test messages to the retry topic."),
    "round-trip": Entry("sidecar.cli.round_trip:round_trip", "Send one message and wait until it is delivered."),
    "tail": Entry("sidecar.cli.tail:tail", "Show what is delivered to an origin topic."),
    "pending": Entry("sidecar.cli.messages.pending:pending", "Show what is pending."),
    "list": Entry("sidecar.cli.messages.listing:list_messages", "List pending messages."),
    "get": Entry("sidecar.cli.messages.get:get", "Show one message, with its headers and payload."),
    "cancel": Entry("sidecar.cli.messages.control:cancel", "Remove pending messages before they fire."),
    "reschedule": Entry("sidecar.cli.messages.control:reschedule", "Give pending messages another due time."),
    "fire": Entry("sidecar.cli.messages.control:fire", "Send pending messages to their origin now."),
    "pause": Entry("sidecar.cli.messages.control:pause", "Stop deliveries to an origin topic."),
    "resume": Entry("sidecar.cli.messages.control:resume", "Continue deliveries to a paused origin topic."),
    "outcome": Entry("sidecar.cli.messages.control:outcome", "Look up the outcome of a control record."),
    "dlq": Entry("sidecar.cli.dlq.group:dlq", "Count dead letters, and send them to the retry topic again."),
    "policy": Entry("sidecar.cli.policy:policy", "Check the policies, and show what they do with a message."),
    "migrate": Entry("sidecar.cli.migrate:migrate", "Take over the pending messages of another retry program."),
    "state": Entry("sidecar.cli.state:state", "Inspect a state folder or the changelog."),
    "health": Entry("sidecar.cli.health:health", "Check the health of a running sidecar."),
    "spark": Entry("sidecar.cli.spark.commands:spark", "Run the sidecar on Apache Spark."),
    "doctor": Entry("sidecar.cli.doctor:doctor", "Check everything that a sidecar needs, with a fix for each problem."),
    "version": Entry("sidecar.cli.version:version", "Show the versions of the program and its libraries."),
}


class LazyGroup(click.Group):
    """A group whose commands are known by name and imported when called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [name for name, entry in COMMANDS.items() if _is_installed(entry)]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None or not _is_installed(entry):
            return None
        module, name = entry.target.split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what can complete a word, without the import of all commands."""
        commands = [
            CompletionItem(name, help=COMMANDS[name].summary)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        """Call the command; what it raises becomes text on stderr and an exit status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except SettingsInvalid as error:
            for problem in error.problems:
                click.echo(printable(problem), err=True)
            sys.exit(EXIT_SETTINGS)
        except InvariantViolated as error:
            traceback.print_exc()
            click.echo(printable(f"{error}. {_REPORT}"), err=True)
            sys.exit(EXIT_BUG)
        except SidecarError as error:
            click.echo(printable(str(error)), err=True)
            sys.exit(EXIT_FAILED)
        except Exception as error:  # noqa: BLE001  # the last resort: an unexpected error is a bug, and says so
            traceback.print_exc()
            click.echo(printable(f"{type(error).__name__}: {error}. {_REPORT}"), err=True)
            sys.exit(EXIT_BUG)


def _is_installed(entry: Entry) -> bool:
    return importlib.util.find_spec(entry.target.partition(":")[0]) is not None


@click.command(
    "retry-sidecar",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: retry-sidecar run --bootstrap-servers kafka:9092",
)
@click.version_option(__version__, message="%(prog)s %(version)s", prog_name="retry-sidecar")
def main() -> None:
    """Fire each message of one shared Kafka retry topic back to its origin when it is due."""
