"""JSON Schema of the forms of settings: the types and patterns that Helm checks before a cluster sees a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sidecar.settings.forms import (
    UNITS_MS,
    Decimal,
    Duration,
    Entries,
    Fields,
    Form,
    Items,
    Text,
    Whole,
    Words,
)

Schema = dict[str, Any]

_FRACTION: Final = "(?:[.][0-9]{1,9})?"


def schema_of(form: Form) -> Schema:
    """Return the schema of a value of this form; `pattern` applies to text, `minimum` and `maximum` to numbers."""
    if isinstance(form, Fields):
        properties = {key: schema_of(each) for key, each in form.fields.items()}
        closed: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
        return closed | ({"required": list(form.required)} if form.required else {})
    if isinstance(form, Entries):
        return {"type": "object", "propertyNames": _text(form.key), "additionalProperties": schema_of(form.value)}
    types = _types(form)
    if isinstance(form, Items):
        in_list = {"type": types, **_bounds(form.item), **_text(form)}
        some = {"minItems": form.least} | ({} if form.most is None else {"maxItems": form.most})
        return {
            "type": [*types, "array"],
            **_bounds(form.item),
            **_text(form),
            "items": in_list,
            **some,
            "uniqueItems": form.once,
        }
    return {"type": types, "minLength": 1, **_bounds(form), **_text(form)}


def _types(form: Form) -> list[str]:
    match form:
        case Words() | Text(only_texts=True):
            return ["string"]
        case Decimal():
            return ["string", "number"]
        case Items(item):
            return _types(item)
        case _:
            return ["string", "integer"]


def _bounds(form: Form) -> Schema:
    match form:
        case Whole(low, high) | Duration(low, high) | Decimal(low, high):
            return {"minimum": low, "maximum": high}
        case Text(numbers=Whole() as bounds):
            return _bounds(bounds)
        case _:
            return {}


def _text(form: Form) -> Schema:
    """Return what a text must match: its shape, which an error can show, and where that holds its exact pattern."""
    schema: Schema = {"pattern": _whole(_shape(form))}
    if (exact := _exact(form)) != _shape(form):
        schema |= {"if": {"pattern": schema["pattern"]}, "then": {"pattern": _whole(exact)}}
    further = list(_further(form))
    return schema | ({"allOf": further} if further else {})


def _whole(pattern: str) -> str:
    return f"^\\s*(?:{pattern})\\s*$"


def _further(form: Form) -> Iterator[Schema]:
    match form:
        case Text(refused=refused, accepted=accepted) if refused:
            refuse = _no_text(f"^\\s*(?:{refused})")
            yield {"anyOf": [{"enum": list(accepted)}, refuse]} if accepted else refuse
        case Items(most=int(most)):
            yield {"pattern": f"^[^,]*(?:,[^,]*){{0,{most - 1}}}$"}
        case Items(item=Words(words), once=True):
            for word in words:
                yield _no_text(f"(?:^|,)\\s*{word}\\s*,(?:.*,)?\\s*{word}\\s*(?:,|$)")
        case _:
            return


def _no_text(pattern: str) -> Schema:
    return {"not": {"type": "string", "pattern": pattern}}


def _shape(form: Form) -> str:
    match form:
        case Whole():
            return "[0-9]+"
        case Decimal():
            return f"[0-9]+{_FRACTION}"
        case Duration():
            return "[0-9]+(?:ms|s|m|h|d)?"
        case Items(item):
            return _joined(_shape(item))
        case _:
            return _exact(form)


def _exact(form: Form) -> str:
    match form:
        case Whole(low, high):
            return numbers(low, high)
        case Decimal(low, high):
            return decimals(low, high)
        case Duration(low_ms, high_ms):
            ranges = ((unit, -(-low_ms // unit_ms), high_ms // unit_ms) for unit, unit_ms in UNITS_MS.items())
            texts = {unit: numbers(low, high) for unit, low, high in ranges if low <= high}
            return "|".join(f"(?:{text}){'(?:ms)?' if unit == 'ms' else unit}" for unit, text in texts.items())
        case Words(words, any_case):
            return "|".join(_any_case(word) if any_case else word for word in words)
        case Items(item):
            return _joined(_exact(item))
        case Text(pattern):
            return pattern
        case _:
            raise AssertionError(f"{form} is no text")


def _joined(item: str) -> str:
    return f"(?:{item})(?:\\s*,\\s*(?:{item}))*"


def _any_case(word: str) -> str:
    return "".join(f"[{each.upper()}{each.lower()}]" if each.isalpha() else each for each in word)


def decimals(low: float, high: float) -> str:
    """Return a pattern of the numbers from low to high, which is whole; zeros may stand before and behind them."""
    floor, ceiling = int(low), int(high)
    behind = f"{low:.9f}".partition(".")[2].rstrip("0")
    parts = [f"(?:{numbers(floor + 1, ceiling - 1)}){_FRACTION}"] if ceiling - floor > 1 else []
    if behind:
        parts.append(f"0*{floor}[.](?:{_from(behind)})")
    elif floor < ceiling:
        parts.append(f"(?:{numbers(floor, floor)}){_FRACTION}")
    parts.append(f"(?:{numbers(ceiling, ceiling)})(?:[.]0{{1,9}})?")
    return "|".join(parts)


def _from(digits: str) -> str:
    """Return a pattern of the digits behind a point that make at least this number; at most nine."""
    parts = []
    for at, digit in enumerate(digits):
        if digit != "9":
            parts.append(f"{digits[:at]}{_class(int(digit) + 1, 9)}[0-9]{{0,{8 - at}}}")
    parts.append(f"{digits}[0-9]{{0,{9 - len(digits)}}}")
    return "|".join(parts)


def numbers(low: int, high: int) -> str:
    """Return a pattern of the whole numbers from low to high, both included; zeros may stand before them."""
    parts = ["0+"] if low == 0 else []
    full: list[int] = []
    for length in range(len(str(max(low, 1))), len(str(high)) + 1):
        first, last = max(low, 10 ** (length - 1)), min(high, 10**length - 1)
        if first > last:
            continue
        if (first, last) == (10 ** (length - 1), 10**length - 1):
            full.append(length - 1)
        else:
            parts += (f"0*{each}" for each in _same_length(str(first), str(last)))
    if full:
        parts.append(f"0*[1-9][0-9]{{{full[0]},{full[-1]}}}")
    return "|".join(parts)


def _same_length(first: str, last: str) -> Iterator[str]:
    """Yield patterns of the numbers between two of one length."""
    rest = len(first) - 1
    if first == "0" * len(first) and last == "9" * len(last):
        yield f"[0-9]{{{len(first)}}}" if first else ""
    elif first[0] == last[0]:
        yield from (first[0] + each for each in _same_length(first[1:], last[1:]))
    else:
        low, high = int(first[0]), int(last[0])
        if first[1:] != "0" * rest:
            yield from (first[0] + each for each in _same_length(first[1:], "9" * rest))
            low += 1
        if last[1:] == "9" * rest:
            high += 1
        if low < high:
            yield _class(low, high - 1) + (f"[0-9]{{{rest}}}" if rest else "")
        if last[1:] != "9" * rest:
            yield from (last[0] + each for each in _same_length("0" * rest, last[1:]))


def _class(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"
