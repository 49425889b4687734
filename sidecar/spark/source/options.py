"""The options of the source, given with `--source`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.errors import SettingsInvalid
from sidecar.spark.source.offsets import Limits

RECORDS: Final = "maxOffsetsPerTrigger"
BYTES: Final = "maxBytesPerTrigger"
DEFAULTS: Final = Limits(records=100_000, bytes=128 * 1024 * 1024)


def limits_of(given: Mapping[str, str]) -> Limits:
    """Return what a micro-batch reads at most. Raises SettingsInvalid: an option is unknown, or has no such value."""
    problems, limits = [], DEFAULTS
    for name, value in given.items():
        try:
            if name == RECORDS:
                limits = limits._replace(records=_positive(int(value)))
            elif name == BYTES:
                limits = limits._replace(bytes=_positive(int(value)))
            elif name.startswith("kafka."):
                problems.append(
                    f"--source {name}: the source has no Java client any more: set a property of its client as "
                    "CLIENT_<NAME>, see docs/reference/settings.md"
                )
            else:
                problems.append(f"--source {name}: is unknown: allowed are {RECORDS} and {BYTES}")
        except ValueError:
            problems.append(f"--source {name}={value}: allowed is a number from 1 on")
    if problems:
        raise SettingsInvalid(problems)
    return limits


def _positive(number: int) -> int:
    if number < 1:
        raise ValueError
    return number
