"""Every exception of the project; the class says who acts.

SidecarError
 ├── SettingsInvalid        the operator fixes the settings: exit status 2
 ├── CommandFailed          a command could not do its work: exit status 1
 │    ├── BrokerUnavailable
 │    │    └── OutcomeUnknown   a command may act all the same: its id finds that out
 │    └── AlreadyRunning     the caller waits for the work that is under way
 ├── KafkaFailed            a broker or the client library refuses a call: the caller decides what to do
 ├── TopicsInvalid          the operator fixes a topic or a permission, and `run` waits: the text has the command
 ├── DuplicateInstance      another process runs with the same instance id: exit status 1
 ├── PartitionStopped       one partition stops, unready; the others continue
 │    ├── FormatUnknown     written by a newer version
 │    └── RecordCorrupt     a checksum does not match
 ├── StoreFailed            the state folder cannot be used now (full, locked, not writable)
 │    └── StoreCorrupt      quarantined and rebuilt from the changelog
 ├── TransactionFailed      recover and plan again; has whether the producer must be replaced
 └── InvariantViolated      a bug: exit status 70
"""

from __future__ import annotations

from collections.abc import Sequence


class SidecarError(Exception):
    """Base of all errors that this project raises on purpose; its text tells the user what to do."""


class SettingsInvalid(SidecarError):
    """One or more settings cannot be used. `problems` has one line each: setting, value, what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class CommandFailed(SidecarError):
    """A command could not do its work."""


class BrokerUnavailable(CommandFailed):
    """No broker answered in the time that was given."""


class OutcomeUnknown(BrokerUnavailable):
    """A command was sent, or may have been, and nothing tells yet whether it acts.

    Args:
        control_id: Its id: look the outcome up, or send the command again with it, which acts once.
    """

    def __init__(self, text: str, control_id: str) -> None:
        super().__init__(text)
        self.control_id = control_id


class AlreadyRunning(CommandFailed):
    """Other work of this kind is under way in this process; the text names it."""


class KafkaFailed(SidecarError):
    """A broker or the client library refuses a call; the text is in its words.

    Args:
        code: Kafka's name of the error, for example `TOPIC_AUTHORIZATION_FAILED`.
        away: No broker answers: the same call can succeed later.
        denied: This user lacks a permission.
        fatal: The client cannot be used any more.
    """

    def __init__(
        self, text: str, *, code: str = "", away: bool = False, denied: bool = False, fatal: bool = False
    ) -> None:
        super().__init__(text)
        self.code = code
        self.away = away
        self.denied = denied
        self.fatal = fatal


class TopicsInvalid(SidecarError):
    """A topic or a permission is missing or wrong; the text has one line for each, with the command that fixes it."""


class DuplicateInstance(SidecarError):
    """Another running process uses the same instance id."""


class PartitionStopped(SidecarError):
    """This partition cannot continue; it is shown as unready, and the others continue."""


class FormatUnknown(PartitionStopped):
    """A record or row was written in a format that this version does not know."""


class RecordCorrupt(PartitionStopped):
    """A record or row does not match its checksum or its own lengths."""


class StoreFailed(SidecarError):
    """The state folder cannot be used now."""


class StoreCorrupt(StoreFailed):
    """The state folder is damaged or invalid: it is quarantined and rebuilt from the changelog."""


class TransactionFailed(SidecarError):
    """A transaction was not committed, or its outcome is unknown; the partitions recover.

    Args:
        unknown: It may have been committed: only the log can tell.
        replace: This producer must not be used again.
        fenced: A newer producer has the same transactional id, or the transaction outlived its timeout.
    """

    def __init__(self, text: str, *, unknown: bool, replace: bool, fenced: bool = False) -> None:
        super().__init__(text)
        invariant(
            replace or not (unknown or fenced), "a producer is kept that is fenced or has an unknown outcome", text=text
        )
        self.unknown = unknown
        self.replace = replace
        self.fenced = fenced


class InvariantViolated(SidecarError):
    """The program is wrong. Never caught: the process ends with exit status 70."""


def invariant(condition: bool, message: str, **facts: object) -> None:
    """Raise InvariantViolated with the facts unless the condition holds. Always on."""
    if not condition:
        raise InvariantViolated(message + "".join(f" {name}={value!r}" for name, value in facts.items()))


def printable(text: str) -> str:
    """Return untrusted text on one line, without characters that control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
