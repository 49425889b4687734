"""The JSON of a notification: a document whose texts name fields of the summary, such as `$count` or `${by_reason}`.

Placeholders are filled in after the document was read, so no value can change its structure.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.errors import SettingsInvalid
from sidecar.notify.summary import FIELDS

BYTES_MAX: Final = 64 * 1024
DEFAULT: Final = json.dumps({name: f"${name}" for name in FIELDS})
"""The document without NOTIFY_TEMPLATE: every field under its own name."""


class Template:
    """A checked document.

    Args:
        text: JSON with placeholders. `$$` is a dollar sign.

    Raises:
        ValueError: It is no JSON, or a placeholder is not one of FIELDS; the text says which.
    """

    def __init__(self, text: str) -> None:
        try:
            self._document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is no JSON: {error}") from error
        for each in _texts(self._document):
            template = string.Template(each)
            if not template.is_valid():
                raise ValueError("has a $ that begins no placeholder: write $$ for a dollar sign")
            for name in template.get_identifiers():
                if name not in FIELDS:
                    raise ValueError(f"names ${name}, which is no field: allowed are {', '.join(FIELDS)}")

    def render(self, fields: Mapping[str, Any]) -> bytes:
        """Return the document with the values of all FIELDS."""
        return json.dumps(_filled(self._document, fields)).encode()


def read_template(path: Path | None) -> Template:
    """Return the template of NOTIFY_TEMPLATE; None: the default one. Raises SettingsInvalid, without its text."""
    if path is None:
        return Template(DEFAULT)
    said = f"NOTIFY_TEMPLATE: {str(path)!r}"
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise SettingsInvalid([f"{said} is larger than {BYTES_MAX} bytes: it must be a small JSON document"])
        return Template(content.decode())
    except OSError as error:
        raise SettingsInvalid([f"{said} cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise SettingsInvalid([f"{said} is not UTF-8: it must be JSON in UTF-8"]) from error
    except ValueError as error:
        raise SettingsInvalid([f"{said} {error}"]) from error


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _filled(value: Any, fields: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, fields) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, fields) for each in value]
    if not isinstance(value, str):
        return value
    template = string.Template(value)
    names = template.get_identifiers()
    if len(names) == 1 and value in (f"${names[0]}", f"${{{names[0]}}}"):
        return fields[names[0]]
    shown = {name: each if isinstance(each, str) else json.dumps(each) for name, each in fields.items()}
    return template.substitute(shown)
