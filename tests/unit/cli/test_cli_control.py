"""The commands that act on what is pending: what they ask for, what they say, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.cli.instance import Instances, Reply, Unanswered
from sidecar.cli.messages import control, http_control
from sidecar.cli.messages.http_control import HttpControl
from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome, Target
from sidecar.control.client import ControlResult, Sent
from sidecar.engine.items import target_text
from sidecar.errors import BrokerUnavailable, CommandFailed
from sidecar.model import Scope, TimerId
from sidecar.settings import Settings

DONE = ControlResult("c-1", "0-5-9", Outcome.CANCELLED, 1, "", {}, ())
MISSING = ControlResult("c-1", "id:x", None, 0, "", {}, (2, 0))


class Group:
    """A fake cluster: gives the answers of the test in turn, and records its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[ControlKind, str, int | None]] = []
        self.answers: list[ControlResult | BaseException] = []
        self.found: ControlResult | None = None
        self.waited_s: list[float] = []

    def __call__(self, settings: Settings) -> Group:
        return self

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to let go of."""

    def send(self, kind: ControlKind, target: Target, *, due_ms: int | None, scope: Scope, deadline_s: float) -> Sent:
        self.asked.append((kind, target_text(target), due_ms))
        return Sent("c-1", target_text(target), {0: 0}, {0: 0})

    def wait(self, sent: Sent, *, deadline_s: float, heard: Callable[[int], None]) -> ControlResult:
        self.waited_s.append(deadline_s)
        heard(1)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def lookup(self, control_id: str, *, deadline_s: float) -> ControlResult | None:
        return self.found


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(control, "ControlClient", made)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments)


def answered(outcome: Outcome, count: int = 1, target: str = "0-5-9", detail: str = "") -> ControlResult:
    return ControlResult("c-1", target, outcome, count, detail, {}, ())


# What is asked for


@pytest.mark.parametrize("name", ["cancel", "fire"])
def test_targets_are_acted_on_one_after_the_other(group: Group, name: str) -> None:
    group.answers = [DONE, DONE]
    assert run(name, "0-5-9", "id:größe", "--timeout", "7").exit_code == 0
    assert group.asked == [(ControlKind(name), "0-5-9", None), (ControlKind(name), "id:größe", None)]
    assert group.waited_s == [7, 7]


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_origins_are_named_by_their_topics(group: Group, name: str) -> None:
    group.answers = [DONE, DONE]
    assert run(name, "orders", "payments").exit_code == 0
    assert group.asked == [(ControlKind(name), "orders", None), (ControlKind(name), "payments", None)]


def test_a_reschedule_says_when_or_how_long_from_now(group: Group) -> None:
    group.answers = [DONE, DONE]
    before_ms = SystemClock().wall_ms()
    assert run("reschedule", "0-5-9", "--due-ms", "1767225600000").exit_code == 0
    assert run("reschedule", "0-5-9", "--delay", "10m").exit_code == 0
    (_, _, first_ms), (_, _, second_ms) = group.asked
    assert first_ms == 1767225600000
    assert second_ms is not None
    assert before_ms + 600_000 <= second_ms <= SystemClock().wall_ms() + 600_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cancel"], "Missing argument"),
        (["cancel", "0-5-9", "order-4711"], "allowed are a timer id"),
        (["cancel", "id:"], "1 to 256 bytes"),
        (["fire", "id:\udcff"], "'id:?': must be UTF-8 text"),
        (["pause", "a b"], "allowed is a topic name"),
        (["pause", "a\udcff"], "'a?': must be UTF-8 text"),
        (["reschedule", "0-5-9"], "--due-ms and --delay: give one of them"),
        (["reschedule", "0-5-9", "--due-ms", "1", "--delay", "1s"], "--due-ms and --delay: give one of them"),
        (["reschedule", "0-5-9", "--delay", "soon"], "must be a duration"),
        (["reschedule", "0-5-9", "--due-ms", str(2**63)], "retry-due-ms"),
    ],
)
def test_what_would_be_refused_is_a_usage_error_and_nothing_is_sent(
    group: Group, arguments: list[str], said: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, group.asked) == (2, [])
    assert said in result.stderr


# What is said


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (DONE, "0-5-9: cancelled, 1 message\n"),
        (answered(Outcome.FIRED, 1_200, "id:x"), "id:x: fired, 1,200 messages\n"),
        (answered(Outcome.PAUSED, 17, "orders"), "orders: paused, 17 messages pending\n"),
        (answered(Outcome.PAUSED, 0, "ordesr"), "ordesr: paused, 0 messages pending. Check the name of the topic\n"),
        (answered(Outcome.PAUSED, 0, "*"), "*: paused, 0 messages pending\n"),
        (answered(Outcome.RESUMED, 0, "orders"), "orders: resumed, 0 messages pending\n"),
        (answered(Outcome.FIRED, 2, detail="1 to the DLQ"), "0-5-9: fired, 2 messages (1 to the DLQ)\n"),
    ],
)
def test_what_is_done_is_said_on_stdout(group: Group, answer: ControlResult, text: str) -> None:
    group.answers = [answer]
    result = run("cancel", "0-5-9")
    assert (result.exit_code, result.stdout, result.stderr) == (0, text, "")


def test_a_reschedule_names_the_new_time(group: Group) -> None:
    group.answers = [answered(Outcome.RESCHEDULED)]
    result = run("reschedule", "0-5-9", "--due-ms", "1767225600250")
    assert result.stdout == "0-5-9: rescheduled to 2026-01-01 00:00:00.250 UTC, 1 message\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answered(Outcome.NOT_PENDING, 0), "0-5-9: not pending: it has fired, was cancelled, or never existed; "),
        (answered(Outcome.ORIGIN_PAUSED, 0, detail="orders is paused"), "origin is not open (orders is paused); "),
        (answered(Outcome.BAD_REQUEST, 0, detail="signature: no"), "0-5-9: refused (signature: no); "),
    ],
)
def test_what_is_not_done_is_said_on_stderr_with_exit_status_1(group: Group, answer: ControlResult, said: str) -> None:
    group.answers = [answer]
    result = run("fire", "0-5-9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert "control id c-1" in result.stderr


def test_one_target_that_is_not_done_is_enough_for_exit_status_1(group: Group) -> None:
    group.answers = [answered(Outcome.NOT_PENDING, 0), DONE]
    result = run("cancel", "0-5-9", "0-5-9")
    assert (result.exit_code, result.stdout) == (1, "0-5-9: cancelled, 1 message\n")


def test_without_an_answer_it_names_the_partitions_and_how_to_look_it_up(group: Group) -> None:
    group.answers = [MISSING]
    result = run("cancel", "id:x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("id:x: no answer from partition 0, 2 in time: it has no owner now")
    assert "retry-sidecar outcome c-1" in result.stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokerUnavailable("no answer"), CommandFailed("no permission")])
def test_an_interrupted_wait_shows_the_control_id(group: Group, error: BaseException) -> None:
    group.answers = [error]
    result = run("cancel", "0-5-9")
    assert result.exit_code == 1
    assert "0-5-9 was sent: look up its outcome with: retry-sidecar outcome c-1" in result.stderr


def test_without_waiting_it_prints_control_ids_and_asks_for_no_answer(group: Group) -> None:
    result = run("cancel", "0-5-9", "--no-wait")
    assert (result.exit_code, result.stdout, group.waited_s) == (0, "c-1\n", [])
    sent = json.loads(run("cancel", "0-5-9", "--no-wait", "--json").stdout)
    assert sent == {"control_id": "c-1", "target": "0-5-9", "outcome": None}


def test_a_filter_is_one_record_whose_answer_may_take_minutes(group: Group) -> None:
    target = 'filter:{"origin":"orders","due_to":9}'
    group.answers = [answered(Outcome.CANCELLED, 2_000, target)]
    result = run("cancel", "--origin", "orders", "--due-to", "9", "--yes")
    assert (result.exit_code, result.stdout) == (0, f"{target}: cancelled, 2,000 messages\n")
    assert (group.asked, group.waited_s) == ([(ControlKind.CANCEL, target, None)], [600.0])
    assert run("reschedule", "--all", "--due-ms", "5", "--yes", "--no-wait").stdout == "c-1\n"
    assert group.asked[1:] == [(ControlKind.RESCHEDULE, "filter:{}", 5)]


def test_a_filter_that_matches_nothing_has_nothing_to_do(group: Group) -> None:
    group.answers = [answered(Outcome.NOT_PENDING, 0, "filter:{}")]
    result = run("fire", "--all", "--yes")
    assert (result.exit_code, result.stdout) == (0, "filter:{}: nothing to do: no pending message matches\n")


def test_json_is_one_line_for_each_target(group: Group) -> None:
    group.answers = [DONE, MISSING]
    result = run("cancel", "0-5-9", "id:x", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert first == {
        "control_id": "c-1",
        "target": "0-5-9",
        "outcome": "cancelled",
        "count": 1,
        "detail": "",
        "missing": [],
        "known": None,
    }
    assert (second["outcome"], second["missing"]) == (None, [0, 2])


# Looking up


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (DONE, 0, "0-5-9: cancelled, 1 message"),
        (MISSING, 1, "no answer from partition 0, 2"),
        (answered(Outcome.NOT_PENDING, 0), 1, "not pending"),
        (None, 1, "no outcome of control id c-1 on topic kafka-retry-status"),
    ],
)
def test_an_outcome_is_looked_up(group: Group, found: ControlResult | None, status: int, said: str) -> None:
    group.found = found
    result = run("outcome", "c-1")
    assert result.exit_code == status
    assert said in result.output
    if found is not None:
        assert json.loads(run("outcome", "c-1", "--json").stdout)["target"] == found.target


def test_no_broker_is_said_as_such() -> None:
    result = run("cancel", "0-5-9", "--bootstrap-servers", "127.0.0.1:1", "--timeout", "0.3")
    assert result.exit_code == 1
    assert result.stderr.startswith("no answer from Kafka at 127.0.0.1:1")


def test_an_instance_that_is_busy_when_it_is_asked_for_an_outcome_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_control, "AGAIN_S", 0.001)
    waits = {"result": None, "count": 0, "control_id": "c-1", "target": "0-1-2", "detail": "", "missing": [0]}
    done = {**waits, "result": "cancelled", "count": 1, "missing": []}
    replies: list[Reply | Unanswered] = [
        Reply("u", 202, waits, ""),
        Unanswered("too many calls"),
        Reply("u", 404, {"error_code": 404}, ""),
        Reply("u", 200, done, ""),
    ]

    class Busy(Instances):
        def ask(self, *_: object, **__: object) -> Reply:
            reply = replies.pop(0)
            if isinstance(reply, Unanswered):
                raise reply
            return reply

    instance = Busy(lambda: ("http://busy:1",), None)
    result = HttpControl(instance).act(ControlKind.CANCEL, TimerId(0, 1, 2), due_ms=None, deadline_s=30)
    assert (result.outcome, result.count, replies) == (Outcome.CANCELLED, 1, [])
