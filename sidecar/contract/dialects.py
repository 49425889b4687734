"""All dialects, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.contract import native
from sidecar.contract.dialect import Dialect
from sidecar.contract.ibm import Ibm
from sidecar.contract.native import Native
from sidecar.model import Reason, Record, Rejection, Request

_ALL: Final[tuple[Dialect, ...]] = (Native(), Ibm())

DIALECTS: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in _ALL}
DIALECTS_BY_CODE: Final[Mapping[int, Dialect]] = {dialect.code: dialect for dialect in _ALL}

_UNREADABLE: Final = Rejection(
    Reason.BAD_HEADER, "a header key is not UTF-8, so no header of this record can be read: allowed are UTF-8 keys"
)
_CONTROL: Final = Rejection(
    Reason.BAD_HEADER, f"{native.CONTROL}: control records are not accepted by this version, only messages are"
)


def parse(record: Record, dialects: Sequence[Dialect]) -> Request | Rejection:
    """Read what a record asks for. Any bytes give a request or a rejection, never an exception.

    Args:
        record: As consumed.
        dialects: In the order of preference: the first one that claims the record reads it.
    """
    if record.headers is None:
        return _UNREADABLE
    values = dict(record.headers)
    if native.CONTROL in values:
        return _CONTROL
    for dialect in dialects:
        if dialect.claims(values):
            return dialect.parse(record, values)
    wanted = " or ".join(f"{dialect.origin_header} (profile {dialect.name})" for dialect in dialects)
    return Rejection(Reason.MISSING_HEADER, f"no header says where to send the record when due: {wanted} is missing")
