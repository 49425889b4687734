"""An independent judge of what control records did: was every outcome true, and was nothing lost, twice or early?

It reads what is committed: the input, the origins, the DLQ, the outcomes on the status topic, and from the changelog
only where each transaction of a partition ends (its next input offset and its instant). From these it acts the whole
history of every partition again, transaction by transaction: first the input records that the transaction took in, in
their order, then what came due. A record on an origin topic belongs to the last transaction of its partition whose
instant is not after the broker's stamp: the next one is not planned before this one is committed. An instant is an
estimate of the broker's time, though: a delivery near the border of two transactions may belong to either, and a
history is right when it is with one such choice.

A transaction that only the changelog lost (`History.rolled_back`) is acted too, under the same rules, and then all is
as before it: what it took in is taken in again. What went out in it may come once more, which is counted, or not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Final, NamedTuple

from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.status import OutcomeRecord
from sidecar.engine.repeats import REMEMBERED_MAX, REMEMBERED_MS
from sidecar.model import DUE_MS_MAX, TimerId
from tests.integration.control_history import Answer, Asked, Delivery, History, Message, Told, Turn

_EFFECT: Final = {
    ControlKind.CANCEL: Outcome.CANCELLED,
    ControlKind.RESCHEDULE: Outcome.RESCHEDULED,
    ControlKind.FIRE: Outcome.FIRED,
    ControlKind.PAUSE: Outcome.PAUSED,
    ControlKind.RESUME: Outcome.RESUMED,
}
_UNREACHABLE: Final = "is unreachable"
"""In the detail of an outcome that leaves messages where they are because their origin gives no answer."""
_REPEATED: Final = "this is the outcome of the first such command"
"""The detail of an outcome that a copy of a command gets."""
_SLACK_MS: Final = 400
"""The instant of a transaction, an estimate, is at most so far from the time of its broker."""
_CHOICES_MAX: Final = 60
"""The history of a partition, a second or two for an hour, is acted again at most so often, to find the transactions
of its deliveries."""


class Rule(StrEnum):
    """A rule that every history must satisfy."""

    LOST = "nothing is lost"
    TWICE = "nothing comes twice"
    EARLY = "nothing comes before its due, unless it is fired by command"
    OTHER_DUE = "a message comes for the due that it has then"
    CANCELLED = "what is cancelled is never delivered"
    NOT_PENDING = "not-pending is said only of what does not wait"
    UNTRUE = "an outcome says what the history before it gives"
    NOT_FIRED = "what is answered as fired is delivered in the transaction of the answer"
    PAUSED = "a paused origin gets nothing"
    UNANSWERED = "every control record has one outcome"
    TORN = "an outcome is committed with its control record"
    MISTOLD = "a client is told what is committed"


class Fault(NamedTuple):
    """A rule that was broken."""

    rule: Rule
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, and what is only allowed because the changelog lost transactions."""

    faults: Sequence[Fault]
    """Every rule that is broken, with where."""
    came_again: int = 0
    """Messages that came once more than they should, each of a transaction that was rolled back."""
    answered_anew: int = 0
    """Answers to clients that such a transaction gave, and that are another one since."""


def judge(history: History) -> Verdict:
    """Act the history again."""
    faults: list[Fault] = []
    went_out: Counter[tuple[int, int]] = Counter()
    for number in sorted(history.turns):
        partition, found = _act(number, history)
        faults += found
        went_out.update({(number, offset): count for offset, count in partition.went_out.items()})
    twice, came_again = _twice(history, went_out)
    mistold, answered_anew = _mistold(history)
    return Verdict([*faults, *twice, *_paused_by_time(history), *mistold], came_again, answered_anew)


def _act(number: int, history: History) -> tuple[_Partition, Sequence[Fault]]:
    """Act a partition again, with the transactions of unsure deliveries that leave the fewest faults."""
    moved: dict[Delivery, int] = {}
    partition = _Partition(number, history, moved)
    faults = partition.judged()
    tries = _CHOICES_MAX
    untried = partition.unsure() if faults else []
    while untried and faults and tries:
        tries -= 1
        delivery, turn = untried.pop()
        other = _Partition(number, history, {**moved, delivery: turn})
        if len(found := other.judged()) < len(faults):
            moved, partition, faults = {**moved, delivery: turn}, other, found
            untried = partition.unsure()
    return partition, faults


class _Partition:
    """One input partition, acted again.

    Args:
        number: Of the partition.
        history: All that is committed.
        moved: The numbers of the transactions that some deliveries belong to, whatever their stamps say.
    """

    def __init__(self, number: int, history: History, moved: Mapping[Delivery, int]) -> None:
        self._number = number
        self._history = history
        self._moved = moved
        self._faults: list[Fault] = []
        self._faulty: set[int] = set()
        """The transactions in which a rule is broken."""
        self._turn = -1
        self._near: list[tuple[Delivery, int]] = []
        """Deliveries close to the border of another transaction, with its number."""
        self._acted: dict[str, OutcomeRecord] = {}
        """The first outcomes of commands by control id, oldest first."""
        self._waiting: dict[int, int] = {}
        """Due of what waits, by offset."""
        self._gone: dict[int, Outcome | None] = {}
        """What became of the others: CANCELLED, FIRED, None for a dead letter."""
        self._paused: set[str] = set()
        self._fired: dict[int, Delivery] = {}
        """What the transaction at hand delivered and is not accounted for yet."""
        self._now_ms = 0
        self.went_out: Counter[int] = Counter()
        """How often an offset went out in transactions that were rolled back."""
        self._told: defaultdict[int, list[Told]] = defaultdict(list)
        for told in history.told:
            if told.partition == number:
                self._told[told.offset].append(told)

    def judged(self) -> list[Fault]:
        kept = [(turn, False) for turn in self._history.turns[self._number]]
        lost = [(turn, True) for turn in self._history.rolled_back.get(self._number, ())]
        turns = sorted([*kept, *lost], key=lambda each: each[0].at_ms)
        delivered = self._by_turn([turn for turn, _ in turns])
        begin = 0
        for at, (turn, is_lost) in enumerate(turns):
            self._turn, self._now_ms, self._fired = at, turn.at_ms, delivered.get(at, {})
            if is_lost:
                self._take_in_vain(begin, turn.next_offset)
            else:
                self._take_in(begin, turn.next_offset)
                begin = turn.next_offset
        self._end(begin)
        return self._faults

    def unsure(self) -> list[tuple[Delivery, int]]:
        """Return the deliveries that may belong to a neighbour of the transaction in which something is wrong."""
        return [
            (each, turn)
            for each, turn in self._near
            if each not in self._moved and any(abs(turn - faulty) <= 1 for faulty in self._faulty)
        ]

    def _take_in(self, begin: int, end: int) -> None:
        """Act one transaction."""
        for offset in range(begin, end):
            item = self._history.items.get((self._number, offset))
            if isinstance(item, Message):
                self._arrive(offset, item)
            elif item is not None:
                self._act(offset, item)
        self._come_due()

    def _take_in_vain(self, begin: int, end: int) -> None:
        """Act one transaction that is rolled back, with the outcomes that it told, and take its effects back."""
        waiting, gone, paused, told = self._waiting.copy(), self._gone.copy(), self._paused.copy(), self._told.copy()
        acted = self._acted.copy()
        for offset in range(begin, end):
            self._told[offset] = [each for each in told[offset] if each.record.at_ms == self._now_ms]
        self._take_in(begin, end)
        out = (offset for offset, became in self._gone.items() if became is not Outcome.CANCELLED)
        self.went_out.update(offset for offset in out if offset not in gone)
        for offset in range(begin, end):
            told[offset] = [each for each in told[offset] if each.record.at_ms != self._now_ms]
        self._waiting, self._gone, self._paused, self._told, self._acted = waiting, gone, paused, told, acted

    def _by_turn(self, turns: Sequence[Turn]) -> dict[int, dict[int, Delivery]]:
        starts = [turn.at_ms for turn in turns]
        found: dict[int, dict[int, Delivery]] = {}
        for each in self._history.delivered:
            if each.timer.partition == self._number:
                turn = self._moved.get(each, bisect_right(starts, each.stamp_ms) - 1)
                first = bisect_left(starts, each.stamp_ms - _SLACK_MS) - 1
                last = bisect_right(starts, each.stamp_ms + _SLACK_MS)
                self._near += [(each, near) for near in range(max(first, 0), last) if near != turn]
                if found.setdefault(turn, {}).setdefault(each.timer.offset, each) is not each:
                    self._fault(Rule.TWICE, f"{each}, and before in the same transaction")
        if lost := found.pop(-1, None):
            self._fault(Rule.EARLY, f"before any transaction: {list(lost.values())[:3]}")
        return found

    def _fault(self, rule: Rule, text: str) -> None:
        self._faulty.add(self._turn)
        self._faults.append(Fault(rule, f"partition {self._number}, transaction at {self._now_ms}: {text}"))

    # Input

    def _message(self, offset: int) -> Message:
        item = self._history.items[self._number, offset]
        assert isinstance(item, Message)
        return item

    def _arrive(self, offset: int, message: Message) -> None:
        if message.dead:
            self._gone[offset] = None
            return
        for other in self._named(message.retry_id) if message.replaces else ():
            if self._message(other).origin != message.origin:
                continue
            del self._waiting[other]
            self._gone[other] = Outcome.CANCELLED
        self._waiting[offset] = message.due_ms
        if message.due_ms <= self._now_ms and offset in self._fired and message.origin not in self._paused:
            self._deliver(offset)

    def _act(self, offset: int, asked: Asked) -> None:
        targets = self._targets(asked)
        expected, count = self._expected(asked, targets)
        tellings = self._told[offset]
        if len(tellings) != 1:
            self._fault(Rule.UNANSWERED, f"{asked} at {offset} has {len(tellings)} outcomes")
            return
        told = tellings[0].record
        if told.at_ms != self._now_ms:
            self._fault(Rule.TORN, f"{told} at {offset}: another transaction took its control record in")
        if self._is_repeated(asked, offset, told):
            return
        if told.count < count:
            targets, expected, count = self._without_what_went_out(asked, targets, told.count)
        if self._history.origins_fail and asked.kind is ControlKind.FIRE and _UNREACHABLE in told.detail:
            reached = [offset for offset in self._open(targets) if offset in self._fired]
            expected, count = (Outcome.FIRED if reached else Outcome.ORIGIN_PAUSED), len(reached)
            targets = reached or targets
        if told.outcome is Outcome.NOT_PENDING and targets:
            self._fault(Rule.NOT_PENDING, f"{told} at {offset}, but {self._shown(targets)} wait")
        elif (told.outcome, told.count) != (expected, count):
            self._fault(Rule.UNTRUE, f"{told} at {offset}, not {expected} {count}: {asked}")
        if told.outcome is expected:
            self._take_effect(asked, expected, targets)

    def _is_repeated(self, asked: Asked, offset: int, told: OutcomeRecord) -> bool:
        """Tell whether a command is a copy of one that the partition acted on; remember it if not."""
        first = self._acted.get(asked.control_id)
        if told.detail == _REPEATED:
            if first is None or (first.outcome, first.count) != (told.outcome, told.count):
                self._fault(Rule.UNTRUE, f"{told} at {offset}, but the first one was {first}: {asked}")
            return True
        of_one = asked.kind in {ControlKind.CANCEL, ControlKind.FIRE} and not asked.target.startswith("id:")
        if not asked.refused and not of_one:
            if first is not None and self._now_ms - first.at_ms < REMEMBERED_MS:
                self._fault(Rule.UNTRUE, f"{told} at {offset} is acted on again, after {first}: {asked}")
            self._acted[asked.control_id] = told
            if len(self._acted) > REMEMBERED_MAX:
                del self._acted[next(iter(self._acted))]
        return False

    def _without_what_went_out(self, asked: Asked, targets: list[int], told: int) -> tuple[list[int], Outcome, int]:
        """Return targets, outcome and count when what went out in a transaction that was rolled back does not wait."""
        if asked.kind.is_for_origins:
            expected, most = self._expected(asked, targets)
            unsure = (each for each in self.went_out.keys() & self._waiting.keys())
            least = most - sum(self._message(each).origin == asked.target for each in unsure)
            return targets, expected, max(least, told)
        for offset in targets:
            if offset in self.went_out:
                del self._waiting[offset]
                self._gone[offset] = Outcome.FIRED
        sure = [offset for offset in targets if offset in self._waiting]
        return sure, *self._expected(asked, sure)

    def _targets(self, asked: Asked) -> list[int]:
        if asked.kind.is_for_origins or asked.refused:
            return []
        if asked.target.startswith("id:"):
            return self._named(asked.target[3:].encode())
        timer = TimerId.parse(asked.target)
        known = timer is not None and timer.offset in self._waiting and self._shown([timer.offset]) == [asked.target]
        return [timer.offset] if timer is not None and known else []

    def _named(self, retry_id: bytes | None) -> list[int]:
        return [offset for offset in self._waiting if self._message(offset).retry_id == retry_id]

    def _expected(self, asked: Asked, targets: Sequence[int]) -> tuple[Outcome, int]:
        if asked.refused:
            return Outcome.BAD_REQUEST, 0
        if asked.kind.is_for_origins:
            count = sum(self._message(offset).origin == asked.target for offset in self._waiting)
            return _EFFECT[asked.kind], count
        open_ones = self._open(targets) if asked.kind is ControlKind.FIRE else targets
        if open_ones:
            return _EFFECT[asked.kind], len(open_ones)
        return (Outcome.ORIGIN_PAUSED if targets else Outcome.NOT_PENDING), 0

    def _open(self, offsets: Iterable[int]) -> list[int]:
        return [offset for offset in offsets if self._message(offset).origin not in self._paused]

    def _take_effect(self, asked: Asked, outcome: Outcome, targets: Sequence[int]) -> None:
        if outcome is Outcome.PAUSED:
            self._paused.add(asked.target)
        elif outcome is Outcome.RESUMED:
            self._paused.discard(asked.target)
        elif outcome is Outcome.CANCELLED:
            for offset in targets:
                del self._waiting[offset]
                self._gone[offset] = Outcome.CANCELLED
        elif outcome is Outcome.RESCHEDULED:
            self._waiting.update(dict.fromkeys(targets, asked.due_ms))
        at_once = outcome is Outcome.FIRED or (outcome is Outcome.RESCHEDULED and asked.due_ms <= self._now_ms)
        for offset in self._open(targets) if at_once else ():
            if offset in self._fired:
                self._deliver(offset)
            elif not (self._history.origins_fail and outcome is Outcome.RESCHEDULED):
                self._fault(Rule.NOT_FIRED, f"{outcome} by {asked}, and {self._shown([offset])} did not come with it")
                del self._waiting[offset]
                self._gone[offset] = Outcome.FIRED

    # Output

    def _deliver(self, offset: int) -> None:
        delivery, due_ms = self._fired.pop(offset), self._waiting.pop(offset)
        self._gone[offset] = Outcome.FIRED
        if delivery.was_due_ms != due_ms:
            self._fault(Rule.OTHER_DUE, f"{delivery}, but it was due at {due_ms}")

    def _come_due(self) -> None:
        for offset, delivery in self._fired.copy().items():
            if self._gone.get(offset) is Outcome.CANCELLED:
                self._fault(Rule.CANCELLED, f"{delivery}, but it was cancelled")
            elif offset in self._gone:
                self._fault(Rule.TWICE, f"{delivery}, but it was gone")
            elif offset not in self._waiting:
                self._fault(Rule.EARLY, f"{delivery}, but it was not taken in yet")
            else:
                due_ms = self._waiting[offset]
                if delivery.origin in self._paused:
                    self._fault(Rule.PAUSED, f"{delivery}, while its origin is paused")
                elif self._now_ms < due_ms or delivery.stamp_ms < due_ms:
                    self._fault(Rule.EARLY, f"{delivery}, {due_ms - self._now_ms} ms before its due {due_ms}")
                self._deliver(offset)

    def _end(self, next_offset: int) -> None:
        history, number = self._history, self._number
        waits = Counter(timer.offset for timer in history.waiting if timer.partition == number)
        dead = {offset for partition, offset in history.dead if partition == number}
        for offset in self._waiting.keys() - waits.keys() - self.went_out.keys():
            self._fault(Rule.LOST, f"{self._shown([offset])} should wait, due at {self._waiting[offset]}")
        for offset in waits.keys() - self._waiting.keys():
            rule = Rule.CANCELLED if self._gone.get(offset) is Outcome.CANCELLED else Rule.TWICE
            self._fault(rule, f"{self._shown([offset])} still waits")
        letters = {offset for offset, became in self._gone.items() if became is None}
        if wrong := letters ^ dead:
            self._fault(Rule.LOST, f"dead letters that should be, or should not: {sorted(wrong)[:5]}")
        unread = [offset for partition, offset in history.items if partition == number and offset >= next_offset]
        if unread:
            self._fault(Rule.LOST, f"from {min(unread)} on nothing was taken in")

    def _shown(self, offsets: Iterable[int]) -> list[str]:
        return [str(TimerId(self._number, offset, self._message(offset).due_ms)) for offset in offsets]


def _twice(history: History, went_out: Counter[tuple[int, int]]) -> tuple[list[Fault], int]:
    """Return what came more often than once and in transactions that were rolled back, and how often in these."""
    places = [(each.timer.partition, each.timer.offset) for each in history.delivered]
    counted = Counter([*places, *history.dead])
    wrong = [(place, count) for place, count in counted.items() if count > 1 + went_out[place]]
    again = sum(min(count - 1, went_out[place]) for place, count in counted.items())
    return [Fault(Rule.TWICE, f"{place}: {count} records") for place, count in wrong], again


def _paused_by_time(history: History) -> list[Fault]:
    """Look at clocks alone: from the outcomes of a pause until somebody asks for a resume nothing may come.

    The transaction of an outcome may deliver what stood before the control record: the time begins with the next.
    """
    faults = []
    asked = [item for item in history.items.values() if isinstance(item, Asked) and item.kind.is_for_origins]
    begins_ms: defaultdict[str, list[int]] = defaultdict(list)
    for told in history.told:
        item = history.items[told.partition, told.offset]
        if isinstance(item, Asked):
            later = (turn.at_ms for turn in history.turns[told.partition] if turn.at_ms > told.record.at_ms)
            begins_ms[item.control_id].append(min(later, default=DUE_MS_MAX))
    for control_id, origin in {(each.control_id, each.target) for each in asked if each.kind is ControlKind.PAUSE}:
        first_ms = min(each.stamp_ms for each in asked if each.control_id == control_id)
        resumes = (each for each in asked if each.kind is ControlKind.RESUME and each.target == origin)
        begin_ms = max(begins_ms[control_id], default=DUE_MS_MAX)
        end_ms = min((each.stamp_ms for each in resumes if each.stamp_ms >= first_ms), default=DUE_MS_MAX)
        within = [each for each in history.delivered if each.origin == origin and begin_ms < each.stamp_ms < end_ms]
        if within and len(begins_ms[control_id]) == len(history.turns):
            faults.append(Fault(Rule.PAUSED, f"{len(within)} between {begin_ms} and {end_ms}: {within[:3]}"))
    return faults


def _mistold(history: History) -> tuple[list[Fault], int]:
    """Return the answers that are not what is committed, and how many are what only a lost transaction told."""
    committed: defaultdict[str, dict[tuple[int, int], list[OutcomeRecord]]] = defaultdict(dict)
    for told in history.told:
        item = history.items[told.partition, told.offset]
        if isinstance(item, Asked):
            committed[item.control_id].setdefault((told.partition, told.offset), []).append(told.record)
    lost_ms = {number: {turn.at_ms for turn in turns} for number, turns in history.rolled_back.items()}
    faults, anew = [], 0
    for answer in history.answers:
        if answer.outcome is None:
            continue
        places = committed[answer.control_id]
        # Where a transaction was rolled back, the client may have heard of the outcome before or behind it.
        heard = [list(each) for each in product(*places.values())]
        if not any(_says(answer, records) for records in heard):
            faults.append(Fault(Rule.MISTOLD, f"{answer}, but committed is {list(places.values())}"))
            continue
        lasting = [
            record
            for (number, _), records in places.items()
            for record in records
            if record.at_ms not in lost_ms.get(number, ())
        ]
        anew += not _says(answer, lasting)
    return faults, anew


def _says(answer: Answer, records: Sequence[OutcomeRecord]) -> bool:
    """Tell whether an answer is the sum of these outcomes of its control record, one of each partition."""
    outcomes = {each.outcome for each in records}
    hidden = answer.outcome is Outcome.NOT_PENDING and outcomes != {Outcome.NOT_PENDING}
    return answer.outcome in outcomes and not hidden and answer.count == sum(each.count for each in records)
