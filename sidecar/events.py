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
    "api_change": "Somebody changed something by HTTP: the audit trail. `outcome` is what came of it.",
    "api_stopped": "`retry-sidecar api` has ended as it was told to.",
    "broker_awaited": "No broker answers at the start; it is tried again until STARTUP_TIMEOUT.",
    "broker_trouble": "The client library reports an error of a broker that passes by itself. Not repeated while it "
    "stays the same, and at most every 10 s.",
    "changelog_takes_less": "An origin takes larger messages than the changelog: those cannot wait, and are dead "
    "letters `too-large` unless they fit compressed. `mend` has the command.",
    "changelog_not_read": "The broker does not let a partition be restored now; `reason` has its words.",
    "client_logged": "A line of the Kafka client library, in `text`; its least level is LOG_LEVEL_APACHE. At most 10 a "
    "minute that begin with the same word, but for those of level debug; `left_out` says how many were not logged.",
    "clock_not_measured": "The record by which Spark's driver measures its clock was not written; it is tried again.",
    "commit_given_up": "At the end a transaction was not through in time. The broker aborts it; nothing is lost.",
    "commit_hangs": "A transaction got no answer for so long that it is left behind and everything is restored.",
    "committed_offset_gone": "The group's offset is not there any more (offsets.retention.minutes?); the own "
    "checkpoint's is taken.",
    "control_answered": "A control record was carried out, or refused with `detail`.",
    "controls_answered": "A transaction had more control records than are logged one by one.",
    "drain_done": "`run --drain` has fired all that waited.",
    "drain_failed": "`run --drain` ends with something left.",
    "drain_progress": "What `run --drain` still waits for.",
    "entries_not_read": "A request for single messages failed on the local store.",
    "firing_held": "Spark's query waits: the driver's clock cannot be trusted.",
    "http_listening": "The HTTP server answers at `url`.",
    "input_log_is_shorter": "The input ends before the offset that was reached: it was made anew or lost records.",
    "input_offset_lost": "The position is no longer in the input's log; the partition is reset.",
    "input_records_gone": "The input was cleaned before these records were read: **they are lost**. Give it a longer "
    "retention.",
    "input_topic_made_anew": "The input topic was deleted and made again: it is read from its start, and its timers "
    "get stored offsets from `offset_base` on.",
    "member_fenced": "The group has thrown this static member out; another consumer joins in its place. With "
    "`session_over` the brokers had been silent for longer than the session; else another process joined under its "
    "INSTANCE_ID, and the third time within a minute ends this one.",
    "micro_batch_done": "Spark's query has done one, with so many records of the input topic; `steps_ms` is Spark's "
    "own account.",
    "micro_batch_repeated": "Spark: a micro-batch that was cut off is completed as it was begun, under its settings.",
    "offsets_not_told": "The broker does not tell what a restore begins with; `reason` says of what, and in its words.",
    "offsets_set_by_others": "Spark: another tool has set the group's offsets; the query goes on from its checkpoint.",
    "origin_probed": "An origin that was not open takes records again.",
    "owner_not_reached": "Another instance did not answer a question about its messages.",
    "owner_not_understood": "Another instance answered in a form that this version does not know.",
    "partition_held_back": "Its partition of the changelog or the status topic does not take what is written: it "
    "is left out for so many `seconds`, longer each time, and the others go on.",
    "partition_restored": "The partition's state is complete: it takes in and fires.",
    "partition_stopped": "A changelog record cannot be read: the partition waits for a person, the others go on.",
    "partitions_assigned": "The group has given these partitions to this instance.",
    "partitions_lost": "They were taken away without asking: the membership had timed out.",
    "partitions_restarted": "Kafka Connect's restart: these partitions are restored anew.",
    "partitions_revoked": "They go to another member of the group.",
    "producer_not_ready": "The transactional producer could not be had; it is tried again.",
    "producer_ready": "Transactions can begin.",
    "producer_replaced": "A topic takes smaller batches only, or larger ones again: a producer with such takes over.",
    "query_failed": "Spark's query has failed; it is started again.",
    "query_started": "Spark's query runs: messages are taken in and fired.",
    "query_stopped": "Spark's query has ended as it was told to, or because of the clock (`reason`).",
    "readiness_gained": "`/readyz` answers 200 from now on.",
    "readiness_lost": "`/readyz` answers 503 from now on, for these reasons.",
    "records_dropped": "Messages whose exception is on DROPPABLE_EXCEPTION; this line is all that is left of them.",
    "seek_failed": "A partition was taken away in the moment that it was to be read; it is reset.",
    "setting_doubted": "A setting is taken, but is probably not what is wanted.",
    "rows_deleted": "Another instance has had the partition for ten minutes: its rows in the state folder are deleted.",
    "sidecar_started": "Settings, state folder and topics are good; it joins the group.",
    "sidecar_stopped": "It has ended in order.",
    "sidecar_stopping": "It was told to end and finishes what is under way.",
    "spans_not_exported": "OpenTelemetry's variables ask for an exporter that is not installed.",
    "state_handed_back": "`spark export` has written what is pending to the changelog.",
    "status_not_read": "The status topic cannot be read now: the group's figures grow old.",
    "status_not_written": "The status topic takes nothing now: others see the figures of this instance grow old.",
    "status_reader_failed": "The reader of the status topic is opened anew.",
    "status_refused": "A record of the status topic is not signed with API_TOKEN: somebody else writes there, or an "
    "instance has another token. Said once.",
    "store_failed": "The local store is in trouble; it is opened again and brought up to date.",
    "store_not_confirmed": "The changelog does not have what the store took over last: the broker rolled back what it "
    "had said to be committed, or another owner went on since. The partition is restored from the log's start.",
    "store_not_closed": "The local store could not be closed in order; the next start reads more of the changelog.",
    "store_opened": "The local store is open again.",
    "store_quarantined": "The local store was damaged: it is set aside and made anew from the changelog.",
    "topic_noted": "A topic was made or grown, or is not as it should be.",
    "topics_not_grown": "Changelog and status lack a partition that the input has; it is tried again every 10 s.",
    "topics_refuse": "Spark: topics take no records; the micro-batch is decided anew, and what is due for them waits.",
    "transaction_failed": "A transaction was not committed; it is made again. `outcome` is the metric's label.",
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

One line per event on stderr: for people, or as JSON with `LOG_FORMAT=json`. Every line has `timestamp` (UTC), `level`,
`logger` (the module) and `event`; the other fields are those of the event. Search by `event`: the texts of `reason`
and `detail` are for people and may change. Secrets of the settings are masked wherever they turn up.

Made from the code by `python -m sidecar.events > docs/reference/logs.md`.

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
