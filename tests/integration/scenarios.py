"""Courses of events that only the rules of exactly once survive; each ends with what the topics say.

The tests run them with the sidecar as it is, and with mistakes made on purpose, which they must find.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.runtime.transaction.commit import Step
from tests.integration.killable import PATIENT, command
from tests.integration.ledger import Balance, Ledger
from tests.integration.messages import now_ms
from tests.integration.sidecars import API, Sidecar, Sidecars, Stage, set_stage
from tests.waiting import eventually

SESSION: dict[str, str] = {"CLIENT_SESSION_TIMEOUT_MS": "6000"}
"""The shortest that brokers take unless told otherwise."""
LONG_SESSION: dict[str, str] = {"CLIENT_SESSION_TIMEOUT_MS": "40000"}
"""For instances that keep their partitions while one is frozen, or the machine stands still."""
TAKEOVER_S = 40.0


def owns_all(one: Sidecar) -> bool:
    """Tell whether it has every partition and all of them run."""
    states = one.partitions()
    return len(states) == one.stage.partitions and set(states.values()) == {"running"}


def share(*all_of_them: Sidecar) -> bool:
    """Tell whether every instance has a partition and all partitions run, each at one of them."""
    owned = [each.partitions() for each in all_of_them]
    numbers = [number for states in owned for number in states]
    states = {state for each in owned for state in each.values()}
    return all(owned) and sorted(numbers) == list(range(all_of_them[0].stage.partitions)) and states == {"running"}


@contextmanager
def two_and_an_onlooker(bootstrap: str, folder: Path, token: str) -> Iterator[tuple[Stage, Sidecar, Sidecar, Sidecar]]:
    """Yield a stage with two instances that share its partitions, and a process that owns nothing."""
    stage, sidecars = set_stage(bootstrap, 4), Sidecars(folder)
    try:
        one, two, api = (sidecars.make(name, stage, API_TOKEN=token, **LONG_SESSION) for name in ("one", "two", "api"))
        one.start()
        two.start()
        api.start(API)
        api.await_ready()
        eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")
        yield stage, one, two, api
    finally:
        sidecars.end()


def a_former_owner_wakes_up_before_it_fires(stage: Stage, sidecars: Sidecars, mutation: str = "") -> Balance:
    """One is frozen with a plan in its hands; two takes over and fires all of it; one goes on where it was."""
    ledger, armed = Ledger(stage), sidecars.folder / "armed"
    one = sidecars.make("one", stage, **SESSION)
    one.start(command(freeze_at=Step.BEGUN, armed_by=armed, mutation=mutation))
    one.await_ready()
    ledger.send(600, (8_000, 9_000))
    ledger.await_pending([one], 600)
    armed.touch()
    eventually(one.frozen, 20, "one is frozen")

    two = sidecars.make("two", stage, **SESSION)
    two.start()
    eventually(lambda: owns_all(two), TAKEOVER_S, "two has taken over")
    ledger.await_fired()

    one.thaw()
    eventually(lambda: share(one, two), TAKEOVER_S, "one has joined again")
    return ledger.balance()


def a_former_owner_commits_after_the_takeover(stage: Stage, sidecars: Sidecars, mutation: str = "") -> Balance:
    """One is frozen when its offsets are sent and its records are not; two takes over; one sends them and commits."""
    ledger, armed = Ledger(stage), sidecars.folder / "armed"
    one = sidecars.make("one", stage, **SESSION, CLIENT_LINGER_MS="5500")
    one.start(command(freeze_at=Step.OFFSETS_SENT, armed_by=armed, mutation=PATIENT, sees=True))
    one.await_ready()
    armed.touch()
    ledger.send(600, (15_000, 18_000))
    eventually(one.frozen, 20, "one is frozen")

    two = sidecars.make("two", stage, **SESSION)
    two.start(command(mutation=mutation))
    eventually(lambda: len(two.partitions()) == stage.partitions, TAKEOVER_S, "two has been given the partitions")
    assert ledger.changelog_records() == 0, "one has not sent its records yet"
    assert "running" not in two.partitions().values(), "two did not wait for the transaction of one"

    one.thaw()
    eventually(lambda: share(one, two), TAKEOVER_S, "one has joined again")
    ledger.await_ingested()
    ledger.await_due()
    # What is due in a second counts as overdue once the second is over.
    over_ms = max(ledger.due_ms.values()) + 1_000
    eventually(lambda: now_ms() > over_ms, 20, "the last second is over")
    eventually(lambda: one.overdue() == two.overdue() == 0, 40, "nothing that they know of is overdue")
    return ledger.balance()


def a_kill_before_the_commit(stage: Stage, sidecars: Sidecars, mutation: str = "", afterwards: str = "") -> Balance:
    """The process dies while it fires, just before the commit; its store keeps all that it was given.

    Args:
        mutation: Which mistake it makes.
        afterwards: Which one it makes after it was started again.
    """
    ledger, armed = Ledger(stage), sidecars.folder / "armed"
    one = sidecars.make("one", stage, INSTANCE_ID="one")
    one.start(command(kill_at=Step.OFFSETS_SENT, armed_by=armed, flush=True, mutation=mutation))
    one.await_ready()
    ledger.send(600, (5_000, 6_500))
    ledger.await_ingested()
    armed.touch()
    one.wait()

    one.start(command(mutation=afterwards))
    one.await_ready()
    ledger.await_due()
    ledger.await_ingested()
    ledger.await_pending([one], 0)
    return ledger.balance()


def a_steady_stream(stage: Stage, sidecars: Sidecars, mutation: str = "") -> Balance:
    """A message is due in every millisecond."""
    ledger = Ledger(stage)
    one = sidecars.make("one", stage)
    one.start(command(mutation=mutation))
    one.await_ready()
    ledger.send(4_000, (1_500, 5_500))
    ledger.await_ingested()
    ledger.await_due()
    assert one.stop() == 0
    return ledger.balance()
