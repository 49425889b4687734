"""All dialects, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sidecar.contract.control import CONTROL, ControlRequest, parse_control
from sidecar.contract.dialects.dialect import Dialect, HeaderValues
from sidecar.contract.dialects.ibm import Ibm
from sidecar.contract.dialects.native import FIRST_MS, POLICY, Native, policy_headers
from sidecar.contract.values import HeaderError
from sidecar.model import Reason, Record, Rejection, Request

# The order is that of the setting PROFILES by default. A code belongs to its dialect for ever.
_ALL: Final[tuple[Dialect, ...]] = (
    Native(),
    Ibm(),
)

DIALECTS: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in _ALL}
DIALECTS_BY_CODE: Final[Mapping[int, Dialect]] = {dialect.code: dialect for dialect in _ALL}

_UNREADABLE: Final = Rejection(
    Reason.BAD_HEADER, "a header key is not UTF-8, so no header of this record can be read: allowed are UTF-8 keys"
)


def parse(record: Record, dialects: Sequence[Dialect]) -> Request | ControlRequest | Rejection:
    """Read what a record asks for. Any bytes give a request or a rejection, never an exception.

    Args:
        record: The record as consumed.
        dialects: In the order of preference: the first one that claims the record reads it. A record with the header
            `retry-control` is a control record, whatever else it has.
    """
    if record.headers is None:
        return _UNREADABLE
    values = dict(record.headers)
    if CONTROL in values:
        return parse_control(record, values)
    for dialect in dialects:
        if dialect.claims(values):
            request = dialect.parse(record, values)
            if dialect.code != Native.code and (POLICY in values or FIRST_MS in values):
                return _with_policy(request, values)
            return request
    wanted = " or ".join(f"{dialect.origin_header} (profile {dialect.name})" for dialect in dialects)
    return Rejection(Reason.MISSING_HEADER, f"no header says where to send the record when due: {wanted} is missing")


def _with_policy(request: Request | Rejection, values: HeaderValues) -> Request | Rejection:
    """Return a request with what the two headers say that belong to every dialect."""
    if isinstance(request, Rejection):
        return request
    try:
        policy, first_ms = policy_headers(values)
    except HeaderError as error:
        return Rejection(error.reason, error.detail)
    return request._replace(policy=policy, first_ms=first_ms)


def dialects_of(profiles: Iterable[str]) -> list[Dialect]:
    """Return the dialects of the setting PROFILES, in the order of preference."""
    return [DIALECTS[name] for name in profiles]
