"""Every event of the log, explained once: docs/reference/logs.md comes from this table and from the calls in the code.

Levels and fields are read from the source, so they cannot differ from what is logged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_LOGGERS: Final = frozenset({"log", "logger", "structlog.get_logger(__name__)"})

MEANINGS: Final[Mapping[str, str]] = {
    "api_change": "A request changed something: the audit trail. `outcome` is the result.",
    "api_stopped": "`retry-sidecar api` has stopped as requested.",
    "broker_awaited": "No broker answers at the start. The sidecar retries until STARTUP_TIMEOUT.",
    "broker_trouble": "The client library reports a transient broker error. The same error is not logged again, and no "
    "more than one every 10 s.",
    "changelog_replaced": "The changelog was deleted and made anew while the sidecar ran. The partitions recover, and "
    "stop if the new topic lacks what was committed.",
    "changelog_takes_less": "An origin accepts larger messages than the changelog. Such a message cannot be stored: it "
    "becomes a dead letter `too-large` unless it fits when compressed. `fix` has the command.",
    "changelog_not_read": "The broker does not let a partition restore; `reason` is the broker's error.",
    "client_logged": "A line of the Kafka client library, in `text`. LOG_LEVEL_APACHE sets the lowest level. At most "
    "10 lines a minute that begin with the same word, except at level debug; `left_out` counts those that were not "
    "logged.",
    "clock_not_measured": "The record with which Spark's driver measures its clock was not written. The driver tries "
    "again.",
    "commit_given_up": "A transaction did not finish before the shutdown timeout. The broker aborts it; nothing is "
    "lost.",
    "changelog_rolled_back": "The changelog lacks a transaction whose input offsets are committed: a broker, or "
    "an operator, aborted its part. The partition ingests the records of that transaction again, and fires what is "
    "pending in the changelog, without what a search finds in the origins.",
    "commit_hangs": "A transaction, or the start of a producer, got no answer for so long that the sidecar abandons "
    "it. After a transaction it restores every partition.",
    "committed_offset_gone": "The group's committed offset has expired (check offsets.retention.minutes). The "
    "partition continues from the offset in its checkpoint.",
    "committed_offset_rolled_back": "The group's committed offset is older than the changelog: a broker rolled back "
    "the offsets of a transaction. The partition continues from the offset in its checkpoint.",
    "control_answered": "A control record was applied, or refused with `detail`.",
    "controls_answered": "A transaction had more control records than are logged one by one.",
    "duplicate_outlasted": "Another process with the identity of this one keeps fencing it. It started earlier, so it "
    "ends and this one goes on.",
    "drain_done": "`run --drain` has fired every pending message.",
    "drain_failed": "`run --drain` stops while messages are still pending.",
    "drain_progress": "What `run --drain` is still waiting for.",
    "delivered_before": "These messages of a transaction that was lost in the changelog are in their origins, and were "
    "not delivered again; their number by origin.",
    "entries_not_read": "The local store failed to answer a request for single messages.",
    "firing_held": "Spark's query pauses because the driver's clock cannot be trusted.",
    "group_placed": "A new group begins to read the retry topic at START_AT, or at the end of an empty topic. This is "
    "logged once in the life of a group.",
    "http_listening": "The HTTP server listens at `url`.",
    "input_log_is_shorter": "The input ends before the offset already reached: the topic was recreated or lost "
    "records.",
    "input_offset_lost": "The consumer's position is no longer in the input's log. The partition recovers.",
    "input_records_gone": "Retention deleted input records before the sidecar read them: **they are lost**. Increase "
    "the topic's retention.",
    "input_topic_made_anew": "The input topic was deleted and recreated. The sidecar reads it from its start, and its "
    "timers get stored offsets from `offset_base` on.",
    "input_topic_replaced": "The input topic was deleted and recreated while the sidecar read it. The partitions "
    "recover and read the new topic from its start. What they had read of it before may fire twice.",
    "marks_restored": "Spark's query goes on from its state (--restore-marks): of these partitions the changelog did "
    "not say that all of it was sent. What the last micro-batch sent may come twice.",
    "member_fenced": "The group fenced this static member; a new consumer joins in its place. With `session_over`, the "
    "brokers had been silent for longer than the session. Otherwise another process joined under this INSTANCE_ID; "
    "the third time within ten minutes stops the process that started earlier.",
    "messages_not_shown": "No port can be opened for reads of single messages: this Spark driver does not show them.",
    "micro_batch_done": "Spark's query has completed a micro-batch with this many input records; `steps_ms` is Spark's "
    "own timing, `partition_steps_ms` what the partition steps with work took together to read the state, plan, write "
    "the state and encode what they send, in `round_trips` to the state.",
    "micro_batch_repeated": "Spark completes an interrupted micro-batch as it began, with the same settings.",
    "notification_accepted": "NOTIFY_URL accepts notifications again.",
    "notification_dropped": "The process ended before NOTIFY_URL accepted its last notification. The dead letters are "
    "on the DLQ as usual.",
    "notification_failed": "NOTIFY_URL did not accept a notification; `reason` is the status or the class of the "
    "error, never the URL. Logged once until it accepts one.",
    "offsets_not_told": "The broker does not return the offsets that a restore needs; `reason` names the topic and the "
    "broker's error.",
    "offsets_set_by_others": "Another tool has set the group's offsets. Spark's query continues from its own "
    "checkpoint.",
    "origin_probed": "A closed origin accepts records again.",
    "origins_not_searched": "After a transaction was lost in the changelog, an origin or a part of it was not "
    "searched: messages of that transaction that are there may be delivered twice. `fix` gives the permission.",
    "origins_searched": "After a transaction was lost in the changelog, the origins were searched for its deliveries. "
    "`found` are not delivered again.",
    "owner_not_reached": "Another instance did not answer a request for its messages.",
    "owner_not_understood": "Another instance answered in a format that this version does not know.",
    "partition_held_back": "The partition's changelog or status topic does not accept writes. The partition is left "
    "out for `seconds`, longer each time; the others continue.",
    "partition_restored": "The partition's state is complete: it ingests and fires.",
    "partition_stopped": "A changelog record cannot be read, or the changelog lacks what was committed. The partition "
    "stays stopped until an operator acts; `reason` names the decision. The others continue.",
    "partitions_assigned": "The group assigned these partitions to this instance.",
    "partitions_lost": "The group took these partitions without a revocation: the membership had timed out.",
    "partitions_restarted": "A Kafka Connect restart: these partitions are restored again.",
    "partitions_revoked": "These partitions move to another member of the group.",
    "producer_not_ready": "The transactional producer could not be initialised. The sidecar tries again.",
    "producer_ready": "The transactional producer is ready.",
    "producer_replaced": "A topic's batch limit has changed: a producer with that batch size takes over.",
    "query_failed": "Spark's query failed. It restarts.",
    "query_started": "Spark's query is running: it ingests and fires.",
    "query_stopped": "Spark's query has stopped, as requested or because of the clock (`reason`).",
    "read_connection_ended": "A task of Spark's query has closed its connection for reads of single messages.",
    "read_failed": "A task of Spark's query could not read a partition's messages for the API; the query continues.",
    "read_refused": "A connection to the driver's port for reads of single messages does not have the query's secret.",
    "readiness_gained": "`/readyz` now answers 200.",
    "readiness_lost": "`/readyz` now answers 503, for these reasons.",
    "policies_not_reloaded": "The settings that SIGHUP read again have `problems`; nothing has changed.",
    "policies_reloaded": "SIGHUP: the policies were read again. Settings in `needs_restart` keep their values.",
    "redrive_ended": "A redrive that a request started has ended. `outcome` is `done`, `stopped` or `failed`, with the "
    "`reason`.",
    "records_dropped": "Messages whose exception is on DROPPABLE_EXCEPTION. This line is the only trace of them.",
    "seek_failed": "A partition was revoked just as reading was to start. It recovers.",
    "setting_doubted": "A setting is accepted but is probably not what you want.",
    "rows_deleted": "Another instance has owned the partition for ten minutes: its rows in the local store are "
    "deleted.",
    "sidecar_started": "Settings, state folder and topics are valid; the instance joins the group.",
    "sidecar_stopped": "The sidecar has shut down cleanly.",
    "sidecar_stopping": "The sidecar is shutting down and finishes the open transaction.",
    "spans_not_exported": "OpenTelemetry's variables name an exporter that is not installed.",
    "state_exported": "`spark export` has written everything pending to the changelog.",
    "state_rescaled": (
        "`spark run` has given the checkpoint another number of state partitions; the query continues in this folder."
    ),
    "status_not_read": "The status topic cannot be read: the group's figures become stale.",
    "status_not_written": "The status topic does not accept writes: other instances see stale figures for this one.",
    "status_reader_failed": "The reader of the status topic failed and is reopened.",
    "status_refused": "A record of the status topic is not signed with API_TOKEN: another program writes to it, or an "
    "instance, `owner`, has a different token. Logged once.",
    "stopped_partitions_left": "The query goes on under other settings or another version, or ends, although something "
    "was sent ahead of these partitions that their states do not have: they are stopped. The version and the settings "
    "that sent it must run first when they can be read again.",
    "store_failed": "The local store failed. The sidecar reopens it and restores what is missing.",
    "store_not_confirmed": "The changelog lacks the last transaction that the store applied: the broker rolled back a "
    "transaction that it had reported as committed, or another owner has continued since. The partition restores from "
    "the log's start.",
    "store_not_closed": "The local store did not close cleanly; the next start reads more of the changelog.",
    "store_opened": "The local store is open again.",
    "store_quarantined": "The local store was damaged, or of another cluster or changelog. It is moved aside and "
    "rebuilt from the changelog.",
    "token_not_renewed": "The function of OAUTH_CALLBACK failed. It is called again after 5 s or more; the clients "
    "keep their tokens until they expire. The same reason is not logged more than once a minute.",
    "topic_noted": "A topic was created, gained partitions, or has an unsuitable configuration.",
    "topics_awaited": "The start waits for topics or permissions; `reasons` has one line for each, with the command "
    "that fixes it. The same reasons are logged again after 5 minutes.",
    "topics_not_grown": "The changelog or status topic lacks a partition that the input has. The sidecar tries to add "
    "it every 10 s.",
    "topics_refuse": "Spark: topics do not accept records. The micro-batch is planned again, and messages due for "
    "those topics stay pending.",
    "marker_missing": "The brokers reported a transaction as committed, and it has no end in the changelog of a "
    "partition 3 s later. The partition recovers, before a transaction that fails could roll it back.",
    "transaction_left_open": "The brokers reported a transaction as committed and never ended it in the changelog of a "
    "partition, which cannot be read past it. The sidecar commits another one there, which ends both.",
    "transaction_not_settled": "The transaction that ends a forgotten one failed. The partition recovers.",
    "transaction_failed": "A transaction was not committed; the sidecar retries it. `outcome` is the metric's label.",
}
"""What each event means, and what to do where that is not plain."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call in the code that logs an event."""

    event: str
    level: str
    fields: tuple[str, ...]
    place: str
    """Module and line."""


def calls() -> Iterator[Call]:
    """Yield every call of the package that logs. Raises ValueError for an event that is not a literal name."""
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _logs(node.func):
                yield _call(node, f"{path.relative_to(root.parent)}:{node.lineno}")


def _logs(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in {*LEVELS, "exception"}
        and ast.unparse(function.value) in _LOGGERS
    )


def _call(node: ast.Call, place: str) -> Call:
    assert isinstance(node.func, ast.Attribute)
    event = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(event, str):
        raise ValueError(f"{place}: the event must be a literal name, and all else a keyword")
    fields = tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None)
    return Call(event, "error" if node.func.attr == "exception" else node.func.attr, fields, place)


_HEAD: Final = """\
# Log events

The log has one line per event on stderr: readable text, or JSON with `LOG_FORMAT=json`. Every line has `timestamp`
(UTC), `level`, `logger` (the module) and `event`; the table lists the other fields. Search and alert on `event`: the
texts in `reason` and `detail` may change. Secret settings are masked wherever they appear.

Generated by `python -m sidecar.events > docs/reference/logs.md`.

| event | level | fields | meaning |
|---|---|---|---|
"""


def document() -> str:
    """Return the text of docs/reference/logs.md."""
    found: dict[str, list[Call]] = {}
    for call in calls():
        found.setdefault(call.event, []).append(call)
    rows = []
    for event in sorted(MEANINGS):
        made = found.get(event, [])
        levels = ", ".join(sorted({call.level for call in made}, key=LEVELS.index)) or "as the library says"
        fields = ", ".join(f"`{field}`" for field in sorted({field for call in made for field in call.fields}))
        rows.append(f"| `{event}` | {levels} | {fields} | {MEANINGS[event]} |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    print(document(), end="")
