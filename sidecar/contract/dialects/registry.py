"""All dialects, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sidecar.contract.control import CONTROL, ID_PREFIX, ControlKind, ControlRequest, parse_control
from sidecar.contract.dialects.custom import Custom, CustomHeaders
from sidecar.contract.dialects.dialect import Cancel, Dialect, HeaderValues
from sidecar.contract.dialects.etf1 import Etf1
from sidecar.contract.dialects.ibm import Ibm
from sidecar.contract.dialects.karafka import Karafka
from sidecar.contract.dialects.native import FIRST_MS, POLICY, Native, policy_headers
from sidecar.contract.dialects.sky import Sky
from sidecar.contract.dialects.spring import Spring
from sidecar.contract.dialects.timebridge import Timebridge
from sidecar.contract.values import HeaderError
from sidecar.model import Reason, Record, Rejection, Request

# A code belongs to its dialect for ever.
_ALL: Final[tuple[Dialect, ...]] = (
    Native(),
    Ibm(),
    Spring(),
    Karafka(),
    Etf1(),
    Timebridge(),
    Sky(),
    Custom(),
)
DEFAULT: Final = (Native.name, Ibm.name)
"""The names of the dialects that are accepted by default; all others must be named."""

Profile = str | CustomHeaders
"""The name of a dialect; the header names of profile custom."""

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
        if dialect.claims(values) or (dialect.reads_payload and dialect.takes(record, values)):
            request = dialect.parse(record, values)
            if isinstance(request, Cancel):
                if dialect.claims(values):
                    return _cancelled(record, request)
                if named := [each for each in dialects if each.claims(values)]:
                    return parse(record, named)
                # Nothing in the record tells these dialects apart.
                same = tuple(each.code for each in dialects if each.reads_payload and each.takes(record, values))
                return _cancelled(record, Cancel(request.retry_id, request.scope._replace(dialects=same)))
            if dialect.code != Native.code and (POLICY in values or FIRST_MS in values):
                return _with_policy(request, values)
            return request
    wanted = " or ".join(f"{each.origin_header or 'a JSON value'} (profile {each.name})" for each in dialects)
    return Rejection(Reason.MISSING_HEADER, f"no header says where to send the record when due: {wanted} is missing")


def _cancelled(record: Record, cancel: Cancel) -> ControlRequest:
    """Return a tombstone as the control record that it stands for. Like a replacement, it needs no signature."""
    control_id = f"tombstone-{record.partition}-{record.offset}"
    target = f"{ID_PREFIX}{cancel.retry_id.decode()}"
    return ControlRequest(
        control_id, target, ControlKind.CANCEL, cancel.retry_id, needs_signature=False, scope=cancel.scope
    )


def _with_policy(request: Request | Rejection, values: HeaderValues) -> Request | Rejection:
    """Return a request with what the two headers say that belong to every dialect."""
    if isinstance(request, Rejection):
        return request
    try:
        policy, first_ms = policy_headers(values)
    except HeaderError as error:
        return Rejection(error.reason, error.detail)
    return request._replace(policy=policy, first_ms=first_ms)


def dialects_of(profiles: Iterable[Profile]) -> list[Dialect]:
    """Return the dialects of the setting PROFILES, in the order of preference."""
    return [Custom(each) if isinstance(each, CustomHeaders) else DIALECTS[each] for each in profiles]
