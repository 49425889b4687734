"""Logging: one line per event on stderr, for people or as JSON, with every secret masked.

Events are named `noun_verb` (`partition_restored`), with their facts as keys. `structlog.get_logger()` and the standard
library's loggers (uvicorn, librdkafka) end in the same handler.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from sidecar.errors import printable

LIBRDKAFKA = "librdkafka"
HTTP_CLIENT: Final = ("httpx", "httpcore")
"""Loggers with a line for each request, which no level brings back."""
CLIENT_LINES_MAX: Final = 10
CLIENT_LINES_WITHIN_S: Final = 60.0
CLIENT_KINDS_MAX: Final = 100
_MASK = "***"


def configure(
    *,
    level: str = "info",
    form: str = "console",
    librdkafka_level: str = "info",
    secrets: Collection[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Send all log lines to one stream; the last call wins.

    Args:
        level: Least level: debug, info, warning, error or critical.
        form: `console` for people or `json` for collectors.
        librdkafka_level: Least level of the Kafka client library's own lines.
        secrets: Values that are masked wherever they turn up in a line, tracebacks included.
        stream: The stream for all lines; stderr unless given.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    target = stream or sys.stderr
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, _name_client_event],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(form, colors=target.isatty()),
            _Masker(secrets),
        ],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    # Whatever level somebody gives them: their lines have the address of the webhook, in their own spelling.
    handler.addFilter(lambda record: record.name.partition(".")[0] not in HTTP_CLIENT)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    client_logger = logging.getLogger(LIBRDKAFKA)
    client_logger.setLevel(librdkafka_level.upper())
    client_logger.filters[:] = [ClientLines()]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Module-level loggers exist before the command has read its settings.
        cache_logger_on_first_use=False,
    )


def librdkafka_logger() -> logging.Logger:
    """Return the logger to hand to confluent-kafka clients as `logger=`."""
    return logging.getLogger(LIBRDKAFKA)


@dataclass(slots=True)
class _Kind:
    since_s: float
    lines: int = 0
    left_out: int = 0


class ClientLines(logging.Filter):
    """Limits the lines of each kind: while no broker answers, the client library logs a hundred a second.

    The first line of the next interval has the number of omitted lines. Debug lines are not limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to log a line; its first word is its kind: FAIL, REQTMOUT, GETPID."""
        if record.levelno <= logging.DEBUG:
            return True
        name = record.getMessage().partition(" ")[0]
        kind = self._kinds.get(name)
        if kind is None:
            if len(self._kinds) >= CLIENT_KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[name] = _Kind(record.created)
        elif not 0 <= record.created - kind.since_s < CLIENT_LINES_WITHIN_S:
            record.left_out = kind.left_out
            kind = self._kinds[name] = _Kind(record.created)
        kind.lines += 1
        kind.left_out += kind.lines > CLIENT_LINES_MAX
        return kind.lines <= CLIENT_LINES_MAX


def _renderers(form: str, *, colors: bool) -> Sequence[Processor]:
    # Local variables in tracebacks are left out: they are long and hold payloads.
    if form == "json":
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return (
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        )
    return _escape, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_plain_traceback)


def _escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape what the renderer would write unchanged: it quotes texts for their blanks and line ends only."""
    quoted: dict[str, object] = {
        name: _Quoted(value) for name, value in event.items() if isinstance(value, str) and not value.isprintable()
    }
    heads: dict[str, object] = {name: printable(event[name]) for name in ("event", "logger") if name in quoted}
    return {**event, **quoted, **heads}


class _Quoted(NamedTuple):
    """A text that is written as Python writes it, in quotes, with what is not printable escaped."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def _plain_traceback(stream: TextIO, trace: ExcInfo) -> None:
    lines = io.StringIO()
    structlog.dev.plain_traceback(lines, trace)
    stream.write("\n".join(map(printable, lines.getvalue().split("\n"))))


def _name_client_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Give librdkafka's free text an event name, so that lines can be searched for by event."""
    if event.get("logger") == LIBRDKAFKA:
        event["text"] = event["event"]
        event["event"] = "client_logged"
        if left_out := getattr(event["_record"], "left_out", 0):
            event["left_out"] = left_out
    return event


class _Masker:
    """Masks secrets in the finished line: nothing that is rendered can slip past it."""

    def __init__(self, secrets: Collection[str]) -> None:
        forms = {form for secret in secrets if secret for form in _written_forms(secret)}
        # The longest first: a secret may be part of another.
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, _logger: WrappedLogger, _method: str, line: EventDict) -> str:
        # The renderer before this one makes text of the event; structlog's type knows event dicts only.
        text = cast("str", line)
        for form in self._forms:
            text = text.replace(form, _MASK)
        return text


def _written_forms(secret: str) -> tuple[str, ...]:
    """Return the secret as it may stand in a line: raw, or escaped in JSON, in a repr, or in a repr within JSON."""
    escaped = repr(secret)[1:-1]
    return secret, escaped, *(json.dumps(form, ensure_ascii=False)[1:-1] for form in (secret, escaped))
