"""The kinds of values that settings take: how each is read from text, shown as text, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sidecar.settings import forms
from sidecar.settings.forms import UNITS_MS, Form

_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)?")
_EPOCH_MS = re.compile(r"[0-9]{12,15}")
_WHOLE = re.compile(r"[0-9]{1,9}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_GLOB = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,249}")
# 1 to 65535; zeros may stand before it.
_PORT = (
    "0{0,4}[1-9]|0{0,3}[1-9][0-9]|0?0?[1-9][0-9]{2}|0?[1-9][0-9]{3}|[1-5][0-9]{4}"
    "|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
)
_SERVER = re.compile(
    r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?:" + _PORT + "))?"
)
_HOST = re.compile(r"[A-Za-z0-9.:_-]+")
_URL = re.compile(r"[!-~]{1,2000}")
_TOKEN = re.compile(r"[!-+\--~]{16,}")
_LINE = r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?"
_DAY = "(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = "(?:[01][0-9]|2[0-3])(?::?[0-5][0-9](?::?[0-5][0-9](?:[.,][0-9]+)?)?)?"
_INSTANT = (
    f"[0-9]{{4}}(?:-(?:0[1-9]|1[0-2])-{_DAY}|(?:0[1-9]|1[0-2]){_DAY}|-?W(?:0[1-9]|[1-4][0-9]|5[0-3])(?:-?[1-7])?)"
    f"(?:[T ]{_CLOCK}(?:Z|[+-]{_CLOCK})?)?"
)
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
# Java's level names are taken too: IBM's image knows those.
_LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "critical": "critical",
    "all": "debug",
    "trace": "debug",
    "warn": "warning",
    "fatal": "critical",
    "off": "critical",
}

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    `parse` takes the text of any source and raises ValueError when it is not allowed; `allowed` completes the sentence
    "... is not allowed: it must be ...". `show` is the inverse of `parse`.
    """

    allowed: str
    parse: Callable[[str], object]
    show: Callable[[Any], str] = str
    is_list: bool = False
    """Several values, separated by commas; in YAML also a list."""
    is_switch: bool = False
    """True or false: a flag without a value on the command line."""
    is_decimal: bool = False
    """A number that can have a decimal point."""
    is_mapping: bool = False
    """Names with settings below them; as text it is YAML too."""
    form: Form | None = None
    """What `parse` takes, for schemas; None: only `parse` can tell."""


class NotAllowed(ValueError):
    """A text with mistakes in several places.

    Args:
        lines: The texts that complete `<setting>: `, one per mistake: where, value, what is allowed.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def parse_duration_ms(text: str) -> int:
    """Return milliseconds for `250ms`, `20s`, `5m`, `1h`, `7d` or a whole number of milliseconds.

    Raises:
        ValueError: The text has another form.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * UNITS_MS[match[2] or "ms"]


def show_duration(duration_ms: int) -> str:
    """Return the shortest exact form: 300000 is `5m`."""
    for unit, unit_ms in UNITS_MS.items():
        if duration_ms and duration_ms % unit_ms == 0:
            return f"{duration_ms // unit_ms}{unit}"
    return "0ms"


def _items(text: str) -> tuple[str, ...]:
    """Split at commas; the empty text has no items, but an empty item between commas is a mistake."""
    if not text.strip():
        return ()
    items = tuple(item.strip() for item in text.split(","))
    if "" in items:
        raise ValueError(text)
    return items


def _show_items(items: tuple[str, ...]) -> str:
    return ",".join(items)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(text)
        return text

    return parse


def whole(low: int, high: int) -> Kind:
    """Return the kind of whole numbers from low to high, both included."""

    def parse(text: str) -> int:
        # int() alone would take `1_000`, `+5` and the digits of other scripts.
        if _WHOLE.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return Kind(f"a whole number from {low} to {high}", parse, form=forms.Whole(low, high))


def duration(low_ms: int, high_ms: int) -> Kind:
    """Return the kind of durations from low to high, both included, in milliseconds."""

    def parse(text: str) -> int:
        duration_ms = parse_duration_ms(text)
        if not low_ms <= duration_ms <= high_ms:
            raise ValueError(text)
        return duration_ms

    bounds = f"from {show_duration(low_ms)} to {show_duration(high_ms)}"
    return Kind(
        f"a duration {bounds}, such as 250ms, 20s, 5m, 1h, 7d or a whole number of ms",
        parse,
        show_duration,
        form=forms.Duration(low_ms, high_ms),
    )


def durations(high_ms: int, most: int) -> Kind:
    """Return the kind of lists of 1 to `most` durations, none longer than high."""

    def parse(text: str) -> tuple[int, ...]:
        parsed = tuple(parse_duration_ms(item) for item in _items(text))
        if not 1 <= len(parsed) <= most or max(parsed) > high_ms:
            raise ValueError(text)
        return parsed

    return Kind(
        f"1 to {most} durations separated by commas, none above {show_duration(high_ms)}, such as 20s,5m,1h",
        parse,
        lambda value: ",".join(show_duration(item) for item in value),
        is_list=True,
        form=forms.Items(forms.Duration(0, high_ms), 1, most),
    )


def choice(*values: str) -> Kind:
    """Return the kind whose values are these words; capitals do not matter."""
    by_folded = {value.casefold(): value for value in values}

    def parse(text: str) -> str:
        if text.casefold() not in by_folded:
            raise ValueError(text)
        return by_folded[text.casefold()]

    return Kind(f"one of {', '.join(values)}", parse, form=forms.Words(values))


def choices(*values: str) -> Kind:
    """Return the kind of lists, in order and without repeats, of one or more of these words."""

    def parse(text: str) -> tuple[str, ...]:
        items = _items(text)
        if not items or len(set(items)) < len(items) or not set(items) <= set(values):
            raise ValueError(text)
        return items

    return Kind(
        f"one or more of {', '.join(values)}, separated by commas, each once",
        parse,
        _show_items,
        is_list=True,
        form=forms.Items(forms.Words(values, any_case=False), 1, once=True),
    )


def _parse_switch(text: str) -> bool:
    folded = text.casefold()
    if folded not in _TRUE | _FALSE:
        raise ValueError(text)
    return folded in _TRUE


def _parse_level(text: str) -> str:
    if text.casefold() not in _LEVELS:
        raise ValueError(text)
    return _LEVELS[text.casefold()]


def _parse_topic(text: str) -> str:
    if not is_topic_name(text):
        raise ValueError(text)
    return text


def _parse_servers(text: str) -> str:
    servers = _items(text)
    if not servers or any(_SERVER.fullmatch(server) is None for server in servers):
        raise ValueError(text)
    return ",".join(servers)


def _parse_topic_globs(text: str) -> tuple[str, ...]:
    globs = _items(text)
    if not globs or any(_TOPIC_GLOB.fullmatch(glob) is None for glob in globs):
        raise ValueError(text)
    return globs


def _parse_tokens(text: str) -> str:
    """Return tokens separated by commas; a file may also have one a line."""
    tokens = [each.strip() for each in text.replace("\n", ",").split(",")]
    if not all(map(_TOKEN.fullmatch, tokens)) or len(set(tokens)) < len(tokens):
        raise ValueError
    return ",".join(tokens)


def _parse_class_globs(text: str) -> tuple[str, ...]:
    globs = _items(text)
    if any(not glob.isprintable() or " " in glob for glob in globs):
        raise ValueError(text)
    return globs


def _parse_text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(text)
    return text


def _parse_path(text: str) -> Path:
    try:
        return Path(_parse_text(text)).expanduser()
    except RuntimeError as error:  # `~name` of a user who does not exist
        raise ValueError(text) from error


def _parse_url(text: str) -> str:
    place = urlsplit(text)
    # `port` raises ValueError for one that is none.
    if _URL.fullmatch(text) is None or place.scheme not in {"http", "https"} or not place.hostname or place.port == 0:
        raise ValueError(text)
    return text


def _parse_base_url(text: str) -> str:
    place = urlsplit(_parse_url(text.removesuffix("/")))
    if place.path or place.query or place.fragment or place.username is not None:
        raise ValueError(text)
    return text.removesuffix("/")


def is_topic_name(text: str) -> bool:
    """Tell whether Kafka allows a topic of this name."""
    return _TOPIC.fullmatch(text) is not None and text not in (".", "..")


def _parse_start(text: str) -> str | int:
    if text.casefold() in {"latest", "earliest"}:
        return text.casefold()
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


SWITCH = Kind("true or false", _parse_switch, lambda value: "true" if value else "false", is_switch=True)
LEVEL = Kind("one of debug, info, warning, error, critical", _parse_level, form=forms.Words(tuple(_LEVELS)))
TOPIC = Kind(
    "1 to 249 characters out of a-z, A-Z, 0-9, '.', '_', '-', but not '.' or '..'",
    _parse_topic,
    form=forms.Text(_TOPIC.pattern, refused=r"\.{1,2}$"),
)
TOPIC_GLOB = Kind(
    "a topic name or a glob such as orders-*", _matching(_TOPIC_GLOB), form=forms.Text(_TOPIC_GLOB.pattern)
)
SERVERS = Kind(
    "one or more host:port, separated by commas, ports from 1 to 65535",
    _parse_servers,
    form=forms.Items(forms.Text(_SERVER.pattern), 1),
)
TOPIC_GLOBS = Kind(
    "topic names or globs such as orders-*, separated by commas",
    _parse_topic_globs,
    _show_items,
    is_list=True,
    form=forms.Items(forms.Text(_TOPIC_GLOB.pattern), 1),
)
CLASS_GLOBS = Kind(
    "class names or globs such as com.acme.*, separated by commas, without spaces",
    _parse_class_globs,
    _show_items,
    is_list=True,
    form=forms.Items(forms.Text(r"[^\x00-\x20\x7f,]+")),
)
START = Kind(
    "latest, earliest, epoch milliseconds, or ISO 8601 such as 2026-01-01T08:00:00Z",
    _parse_start,
    form=forms.Text(
        f"[Ll][Aa][Tt][Ee][Ss][Tt]|[Ee][Aa][Rr][Ll][Ii][Ee][Ss][Tt]|{_EPOCH_MS.pattern}|{_INSTANT}",
        numbers=forms.Whole(10**11, 10**15 - 1),
    ),
)
TEXT = Kind("one line of text, not empty", _parse_text, form=forms.Text(_LINE))
URL = Kind(
    "an http:// or https:// URL without spaces",
    _parse_url,
    form=forms.Text(
        r"[Hh][Tt][Tt][Pp][Ss]?://(?:[!-~]*@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?:"
        + _PORT
        + r")?)?(?:[/?#][!-~]*)?"
    ),
)
BASE_URL = Kind(
    "http://host:port or https://host:port, without a path",
    _parse_base_url,
    form=forms.Text(r"[Hh][Tt][Tt][Pp][Ss]?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?:" + _PORT + r")?)?/?"),
)
FILE = Kind("the path of a file", _parse_path, form=forms.Text(_LINE))
FOLDER = Kind("the path of a folder", _parse_path)
HOST = Kind("an IP address or a host name", _matching(_HOST))
TOKENS = Kind(
    "one or more different tokens, separated by commas, each of 16 or more printable ASCII characters without spaces "
    "and commas",
    _parse_tokens,
    is_list=True,
)
FUNCTION = Kind(
    "a function as module:function, such as sidecar.kafka.msk_iam:token",
    _matching(_FUNCTION),
    form=forms.Text(_FUNCTION.pattern, only_texts=True),
)
