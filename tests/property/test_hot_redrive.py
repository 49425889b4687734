"""A plain dead letter becomes the same record by the compiled pass as by Python, or is left to Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.contract.dead_letter import REDRIVES, DeadLetter
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord
from sidecar.dlq.redrive import RedrivePolicy
from sidecar.engine import hot
from sidecar.engine.ports import Outgoing
from sidecar.kafka.admin.cluster import Topic
from sidecar.model import Headers, Reason
from sidecar.settings import Settings
from tests.clocks import HandClock
from tests.dead_letters import dead
from tests.property.test_header_parsing import any_lists
from tests.property.test_redrive import legal, mangled, reasons

pytestmark = pytest.mark.skipif(not hot.COMPILED, reason="the hot path is not compiled here: it needs a C compiler")

RETRY = Topic("retry", "id", 4, 1, frozenset(), {"max.message.bytes": "900"})
FILTERS = [
    DeadLetterFilter(),
    DeadLetterFilter(("fatal", "too-large")),
    DeadLetterFilter(("*",), ("ord*",), ("E", "com.*", "sidecar.*"), ("billing", "")),
    DeadLetterFilter(groups=("shop",)),
]
payloads = st.none() | st.sampled_from([b"", b"k", b"v" * 300, b"v" * 700])
own = st.lists(
    st.sampled_from(
        [
            *(("retry-attempt", value) for value in (b"6", b"x", None)),
            *(("retry-exception", value) for value in (b"E", "Fehler-ä".encode(), b"\xff", b"")),
            *(("retry-group", value) for value in (b"billing", b"shop", None)),
            *(("retry-id", value) for value in (b"i", b"i" * 257)),
            *((REDRIVES, value) for value in (b"0", b"2", b"3", b"20", b"99999999999999999999", b"x")),
            ("retry-policy", b"slow"),
            ("retry-due-ms", b"17"),
            ("retry-timer-id", b"0-1-2"),
            ("retry-max-attempts", b"3"),
            ("retry-origin-partition", b"1"),
            ("retry-controls", b"c"),
            ("trace-id", b"4bf92f3577b34da6"),
            ("ü" * 20, None),
            ("__connect.errors.partition", b"9"),
            ("__connect.errors.offset", b""),
            ("retry-dlq-of-a-newer-version", b"1"),
        ]
    ),
    max_size=8,
)
nearly_plain = own.map(lambda headers: [("retry-origin-topic", b"orders"), *headers])
lists = st.one_of(
    st.builds(dead, nearly_plain | legal | any_lists, reasons, truncated=st.just(False)),
    st.builds(lambda headers, more: [*dead(headers, Reason.FATAL), *more], nearly_plain, own),
    mangled,
    st.none(),
)


def policy(terms: RedriveTerms, wanted: DeadLetterFilter, profiles: tuple[str, ...]) -> RedrivePolicy:
    settings_ = replace(Settings(), profiles=profiles)
    return RedrivePolicy(settings_, RETRY, wanted, terms, HandClock())


def letter(headers: Headers | None, key: bytes | None, value: bytes | None, policy_: RedrivePolicy) -> DlqRecord:
    return DlqRecord(1, 7, 5, key, value, headers, DeadLetter(headers, policy_._dialects))


def test_plain_dead_letters_are_not_left_to_python() -> None:
    made = policy(RedriveTerms(spread_ms=60_000), DeadLetterFilter(("fatal",), origins=("orders",)), ("native", "ibm"))
    came: Headers = [("retry-origin-topic", b"orders"), ("retry-attempt", b"6"), ("retry-id", b"i"), ("trace", b"abc")]
    assert made._plain is not None
    sent = made._plain.again(letter(dead(came, Reason.FATAL), b"k", b"v", made), 5)
    assert isinstance(sent, Outgoing)
    assert made._plain.again(letter(dead(came, Reason.TOO_OLD), b"k", b"v", made), 5) is False


@settings(max_examples=1000)
@given(
    headers=lists,
    key=payloads,
    value=payloads,
    terms=st.builds(
        RedriveTerms,
        delay_ms=st.sampled_from([0, 5, 2**63 - 1]),
        spread_ms=st.sampled_from([0, 60_000]),
        max_redrives=st.sampled_from([1, 3, 40]),
        named=st.frozensets(reasons.map(str), max_size=3),
    ),
    wanted=st.sampled_from(FILTERS),
    profiles=st.sampled_from([("native", "ibm"), ("ibm", "native"), ("native", "spring"), ("spring", "native")]),
)
def test_a_dead_letter_becomes_the_same_record_or_is_left_to_python(
    headers: Headers | None,
    key: bytes | None,
    value: bytes | None,
    terms: RedriveTerms,
    wanted: DeadLetterFilter,
    profiles: tuple[str, ...],
) -> None:
    made = policy(terms, wanted, profiles)
    given_ = letter(headers, key, value, made)
    # Twice: the second time such dead letters are known.
    assert made.decide(given_) == made.decide(given_) == made.decide_any(given_)
    if made._plain is None:
        assert profiles[0] == "spring"
