"""Which tests run when: `make test-fast`, `make test` and `make test-all` are three rings, each within the next.

The folder of a test decides, and what it uses: a broker, a program that somebody must install, or the mark `slow` puts
it into the outermost ring. `SCENES` names what `make test` takes from there: for each promise of the README and of the
guarantees the tests that show it on a real broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final


class Ring(StrEnum):
    """A set of tests, the quickest first."""

    FAST = "fast"
    """Nothing outside the process: seconds, beside an editor."""
    TEST = "test"
    """What tells right from wrong within minutes: every change passes it."""
    ALL = "all"
    """What needs processes that die, clusters, browsers, Helm or Spark: every night."""

    def within(self, other: Ring) -> bool:
        """Tell whether a run of the other ring includes this one."""
        order = list(Ring)
        return order.index(self) <= order.index(other)


_OF_FOLDER: Final[Mapping[str, Ring]] = {
    "clients/python/tests/": Ring.FAST,
    "tests/unit/": Ring.FAST,
    "tests/property/": Ring.FAST,
    "tests/simulation/": Ring.FAST,
    "tests/contract/": Ring.TEST,
    "tests/docs/": Ring.TEST,
    "tests/deploy/": Ring.TEST,
    "tests/spark/": Ring.TEST,
}
"""Every other folder is in the outermost ring."""
_OUTERMOST: Final = frozenset(
    {"slow", "bootstrap", "own_broker", "cluster", "browser", "helm", "java", "kustomize", "promtool"}
)
"""The mark of what takes long, and the fixtures of brokers and of programs that Python's packages do not bring."""

_EOS: Final = "tests/integration/exactly_once"
_SIZES: Final = "tests/integration/sizes"
_BY_DUE: Final = "test_messages_fire_by_due_whatever_the_order_in_which_they_came"
_WRONG_CLOCK: Final = (
    "test_beyond_the_allowed_skew_nothing_fires_and_readyz_says_so_until_the_clock_is_right_again[an hour ahead]"
)
_FIRE: Final = "test_fire_brings_a_message_back_now_unless_its_origin_is_paused"
_SMALL_CHANGELOG: Final = (
    "test_a_changelog_whose_limit_falls_while_it_runs_keeps_what_it_takes_and_the_rest_is_too_large"
)

SCENES: Final[Mapping[str, Mapping[str, Collection[str]]]] = {
    "README.md": {
        "make demo": ("tests/integration/operations/test_demo.py",),
        "Use it from an application": (
            "tests/integration/clients/test_examples.py::test_an_example_in_python_balances_the_ledger[confluent]",
        ),
        "Exactly once": (
            f"{_EOS}/test_kill_at_every_step.py::test_a_kill_while_storing_and_one_while_firing[offsets-sent-flushed]",
            f"{_EOS}/test_two_instances.py::test_an_instance_is_killed",
        ),
        "Never early": (f"{_EOS}/test_order_and_overdue.py::test_nothing_fires_early",),
        "Unaltered": (f"{_EOS}/test_round_trip.py",),
        "Ordered": (f"{_EOS}/test_order_and_overdue.py::{_BY_DUE}",),
        "Nothing is lost silently": ("tests/integration/dlq/test_dlq_reasons.py",),
    },
    "docs/explanation/guarantees.md": {
        "Exactly once": (f"{_EOS}/test_restart.py::test_a_state_folder_from_the_past_is_brought_up_to_date",),
        "Never early": (f"tests/integration/faults/test_clock.py::{_WRONG_CLOCK}",),
        "Unchanged": (f"{_EOS}/test_round_trip.py",),
        "Order": (f"{_EOS}/test_order_and_overdue.py::test_messages_of_one_due_fire_in_the_order_in_which_they_came",),
        "No silent loss": ("tests/integration/dlq/test_dlq_reasons.py",),
        "A definite outcome": (
            "tests/integration/control/test_control.py::test_what_is_cancelled_before_it_is_due_is_never_delivered",
            f"tests/integration/control/test_http_control.py::{_FIRE}",
        ),
        "its origin": (
            f"{_SIZES}/test_sizes.py::test_what_is_too_large_for_its_origin_goes_to_the_dlq_and_the_others_fire",
        ),
        "the changelog": (f"{_SIZES}/test_sizes_of_our_topics.py::{_SMALL_CHANGELOG}",),
        "the DLQ": (
            f"{_SIZES}/test_sizes_of_our_topics.py::test_a_dead_letter_is_cut_to_what_the_dlq_takes_and_nothing_waits",
        ),
        "the status topic": (
            f"{_SIZES}/test_sizes_of_our_topics.py::test_a_control_record_acts_though_the_status_topic_takes_no_outcome",
        ),
        "the retry topic": (
            "tests/integration/operations/test_send.py::test_a_message_that_is_too_large_fails_and_says_so",
        ),
    },
}
"""Page -> promise -> tests, each a file, a function or one case of it."""

_SCENES: Final = frozenset(test for page in SCENES.values() for tests in page.values() for test in tests)


def ring_of(test: str, words: Collection[str] = ()) -> Ring:
    """Return the ring of a test, from its id and the names of its marks and fixtures."""
    path, _, name = test.partition("::")
    if not _SCENES.isdisjoint({path, f"{path}::{name.partition('[')[0]}", test}):
        return Ring.TEST
    if not _OUTERMOST.isdisjoint(words):
        return Ring.ALL
    return next((ring for folder, ring in _OF_FOLDER.items() if path.startswith(folder)), Ring.ALL)


def may_hold(place: str, ring: Ring) -> bool:
    """Tell whether a file, or a folder that ends with a slash, can have tests of this ring."""
    if ring_of(place).within(ring):
        return True
    inner = [folder for folder, its in _OF_FOLDER.items() if its.within(ring)]
    return any(each.startswith(place) for each in [*inner, *(_SCENES if ring is Ring.TEST else ())])
