"""The header contract: requests in, fired records and dead letters out, in each dialect."""

from sidecar.contract.control import ControlKind, ControlRequest, Outcome
from sidecar.contract.dead_letter import fit_dead_letter, render_dead_letter
from sidecar.contract.dialects.dialect import Dialect
from sidecar.contract.dialects.registry import DIALECTS, DIALECTS_BY_CODE, dialects_of, parse

__all__ = [
    "DIALECTS",
    "DIALECTS_BY_CODE",
    "ControlKind",
    "ControlRequest",
    "Dialect",
    "Outcome",
    "dialects_of",
    "fit_dead_letter",
    "parse",
    "render_dead_letter",
]
