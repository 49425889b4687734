"""The actions of operators while sidecars run."""

from __future__ import annotations

from typing import Final

from sidecar.contract.control import EVERY_ORIGIN, ControlKind, Target
from sidecar.contract.redrive import RedriveTerms, Skipped, redrive
from sidecar.model import TimerId
from tests.simulation.fakes.cluster import TRANSACTION_TIMEOUT_S
from tests.simulation.fakes.logs import Transaction
from tests.simulation.shell.ledger import UID
from tests.simulation.shell.senders import GOOD_ORIGINS, NARROW, SHAKY
from tests.simulation.shell.world import CALM_STOP_S, CHANGELOG, INPUT, STATUS, Act, Mode, World

LETTERS_MAX: Final = 100
NOTICED_S: Final = 8.0
"""A running sidecar has noticed by then that the retry topic is another one: it asks every second, for 5 s at most."""


def lower_limit(world: World) -> None:
    """Lower or raise what a topic takes; never below what good messages need."""
    name = world.rng.choice([NARROW, *world.dlqs, CHANGELOG, *GOOD_ORIGINS])
    least = {NARROW: 800, **dict.fromkeys(world.dlqs, 1_200)}.get(name, 4_000)
    world.cluster.topics[name].max_bytes = world.rng.choice([least, 2 * least, 1_000_000])
    world.say(name, "takes", world.cluster.topics[name].max_bytes)


def take_right(world: World) -> None:
    """Take away the right to write or to look at one origin, for a while."""
    topic = world.cluster.topics.get(SHAKY)
    if topic is None:
        return
    world.ledger.outage(SHAKY)
    topic.may_write = False
    topic.may_describe = world.rng.random() < 0.6
    world.say("no right to", SHAKY)

    def give() -> None:
        topic.may_write = topic.may_describe = True

    seconds = world.rng.choice([1, 10, 40])
    if not topic.may_describe:
        world.hidden_s.append((world.timeline.now_s, world.timeline.now_s + seconds))
    world.until(seconds, give)


def delete_origin(world: World) -> None:
    """Delete an origin, and make it again after a while."""
    topic = world.cluster.topics.get(SHAKY)
    if topic is None:
        return
    world.ledger.outage(SHAKY)
    world.cluster.delete(SHAKY)
    world.say(SHAKY, "is deleted")

    def create() -> None:
        if SHAKY not in world.cluster.topics:
            world.cluster.create(SHAKY, 1, 20_000)

    world.until(world.rng.choice([1, 10, 40]), create)


def lose_origin_leader(world: World) -> None:
    """A partition of one origin has no leader, or too few replicas."""
    topic = world.cluster.topics.get(SHAKY)
    if topic is None:
        return
    world.ledger.outage(SHAKY)
    log = world.rng.choice(topic.logs)
    log.has_leader = False
    world.silent.add(SHAKY)
    world.say(SHAKY, "has no leader")

    def lead() -> None:
        log.has_leader = True

    world.until(world.rng.choice([1, 10, 40]), lead)


def grow_topic(world: World) -> None:
    """Add a partition to an origin or to the retry topic."""
    name = world.rng.choice([*GOOD_ORIGINS, "retry"])
    topic = world.cluster.topics[name]
    if len(topic.logs) < 5:
        topic.grow(len(topic.logs) + 1)
        world.say(name, "has", len(topic.logs), "partitions")
        if name == "retry":
            world.cluster.group.partitions = len(topic.logs)
            world.cluster.group.rebalance()


def compact(world: World) -> None:
    """The cleaner comes round."""
    for log in world.cluster.topics[CHANGELOG].logs:
        log.compact(world.rng)


def spoil_partition(world: World) -> None:
    """One partition cannot be read, written or restored for a while; the others go on."""
    count = min(len(world.cluster.topics[name].logs) for name in (INPUT, CHANGELOG, STATUS))
    if world.bad_partitions or count < 2:
        return
    number = world.rng.randrange(count)
    world.bad_partitions.add(number)
    world.silent.add("partition")
    name = world.rng.choice([CHANGELOG, CHANGELOG, INPUT, STATUS, "offsets"])
    if name == "offsets":
        _hold_offset(world, number)
    else:
        _take_leader(world, name, number)
    if world.rng.random() < 0.7:
        for process in world.processes:
            process.restarts.ask(False)
    if world.mode is Mode.CALM:
        for other in range(count):
            world.place(world.senders.good(world.timeline.now_ms()), other)
        world.wait(2 * CALM_STOP_S)


def _take_leader(world: World, name: str, number: int) -> None:
    log = world.cluster.topics[name].logs[number]
    if world.rng.random() < 0.7:
        log.has_leader = False
    else:
        log.takes_writes = False
    world.say("partition", number, "cannot be used in", name)

    def lead() -> None:
        log.has_leader = log.takes_writes = True

    world.until(40, lead)


def _hold_offset(world: World, number: int) -> None:
    """An instance that is gone left a transaction open on the partition's offset."""
    group = world.cluster.group
    left = Transaction("gone", world.timeline.now_s, offsets={number: group.offsets.get(number, 0)})
    group.pending.append(left)
    world.say("a transaction is open on the offset of partition", number)
    world.until(TRANSACTION_TIMEOUT_S, lambda: group.settle(left, committed=False))


def close_twice(world: World) -> None:
    """An origin is away, comes back and takes messages, and much later is away again: that is another closure."""
    topic = world.cluster.topics.get(SHAKY)
    if topic is None or len(world.processes) > 1 or world.origin_timeout_ms > 100_000:
        return
    world.silent.add(SHAKY)
    for _ in range(2):
        world.ledger.outage(SHAKY)
        for log in topic.logs:
            log.takes_writes = False
        world.say(SHAKY, "takes no writes")
        world.write(world.senders.shaky(world.timeline.now_ms(), at_once=True))
        world.wait(25.0)
        for log in topic.logs:
            log.takes_writes = True
        world.say(SHAKY, "takes writes again")
        world.wait(world.origin_timeout_ms / 1000 + 20.0)


def control(world: World) -> None:
    """Cancel, move or fire some message, pending or not; by its id, or by the one that its sender gave."""
    rng, now_ms = world.rng, world.timeline.now_ms()
    sent = [each for each in world.ledger.sent.values() if not each.is_touched][-20:]
    if not sent:
        return
    message = rng.choice(sent)
    kind = rng.choice([ControlKind.CANCEL, ControlKind.RESCHEDULE, ControlKind.FIRE])
    retry_id = dict(message.headers).get("retry-id")
    target: Target = TimerId(message.partition, message.offset, message.due_ms)
    # In a recreated topic an offset may speak of a message of the former one: the tests of the plan have that.
    if by_name := retry_id is not None and (world.ledger.is_recreated or rng.random() < 0.5):
        target = retry_id or b""
    elif world.ledger.is_recreated:
        return
    named = [each for each in world.ledger.sent.values() if dict(each.headers).get("retry-id") == retry_id]
    for each in named if by_name else [message]:
        each.is_touched = True
    due_ms = now_ms + rng.choice([0, 5_000]) if kind is ControlKind.RESCHEDULE else None
    world.write_control(kind, target, due_ms, message.partition)


def pause(world: World) -> None:
    """Pause one origin, and resume it after a while."""
    world.write_control(ControlKind.PAUSE, SHAKY)
    world.until(world.rng.choice([1, 10, 40]), lambda: world.write_control(ControlKind.RESUME, SHAKY))


def stop_group(world: World) -> None:
    """Somebody stops the connector, and resumes it after a while: what waited meanwhile comes as what was put off."""
    world.write_control(ControlKind.STOP, EVERY_ORIGIN)

    def resume() -> None:
        for message in world.ledger.sent.values():
            message.is_good = message.is_good and bool(message.out)
        world.write_control(ControlKind.RESUME, EVERY_ORIGIN)

    world.until(world.rng.choice([1, 10, 40]), resume)


def redrive_some(world: World) -> None:
    """Dead letters go to the retry topic again."""
    rng, now_ms = world.rng, world.timeline.now_ms()
    logs = [log for name in world.dlqs for log in world.cluster.topics[name].logs]
    letters = [each for log in logs for each in log.read(log.start, LETTERS_MAX)[0]]
    for letter in rng.sample(letters, min(len(letters), rng.choice([1, 3]))):
        key, value, headers = letter.row
        if UID not in dict(headers):
            continue  # nothing but its place was small enough
        terms = RedriveTerms(delay_ms=rng.choice([0, 2_000]))
        again = redrive(headers, terms, now_ms=now_ms, share=0.0, key=key, value=value)
        if not isinstance(again, Skipped):
            sent = world.senders.redriven(world.ledger.message_of(letter), again, terms.due_ms(now_ms, 0.0))
            world.write(sent)


def restart_partitions(world: World) -> None:
    """Somebody restarts the connector by HTTP."""
    world.rng.choice(world.processes).restarts.ask(world.rng.random() < 0.5)


def cut_input(world: World) -> None:
    """Retention deletes the beginning of a partition of the retry topic, maybe before it was read."""
    topic = world.cluster.topics[INPUT]
    number = world.rng.randrange(len(topic.logs))
    log = topic.logs[number]
    start = min([world.rng.randint(log.start, log.end), *_unread_controls(world, number)])
    world.ledger.deleted(number, start)
    log.cut(start)
    world.say("partition", number, "of the retry topic begins at", start)


def _unread_controls(world: World, number: int) -> list[int]:
    """Return offsets of control records that are not applied yet: without one, an origin stays paused for ever."""
    taken = world.ledger.taken(number)
    entries = world.cluster.topics[INPUT].logs[number].entries
    return [each.offset for each in entries if each.offset >= taken and "retry-control" in dict(each.row.headers)]


def recreate_input(world: World) -> None:
    """Delete the retry topic and create it again under running sidecars. What they read before they notice it may
    fire twice."""
    if world.healing or not all(each.is_up for each in world.processes):
        return
    rng, cluster = world.rng, world.cluster
    count = len(cluster.topics[INPUT].logs)
    if any(_unread_controls(world, number) for number in range(count)):
        return
    world.ledger.recreated()
    cluster.delete(INPUT)
    world.say("the retry topic is deleted")
    if rng.random() < 0.5:
        cluster.group.offsets.clear()
        cluster.group.metadata.clear()
    world.wait(rng.choice([0.1, 3.0]))
    cluster.create(INPUT, count, 1_000_000)
    world.say("the retry topic is there again")
    for _ in range(rng.choice([0, 3, 20])):
        sent = world.senders.good(world.timeline.now_ms())
        sent.replays = 1
        world.write(sent)
    world.wait(NOTICED_S)


ACTS = (
    Act(4, lower_limit, calm=True),
    Act(2, take_right, calm=True),
    Act(2, delete_origin, calm=True),
    Act(2, lose_origin_leader, calm=True),
    Act(2, grow_topic, calm=False),
    Act(4, compact, calm=True),
    Act(1, restart_partitions, calm=True),
    Act(1, cut_input, calm=True),
    Act(1, recreate_input, calm=True),
    Act(3, spoil_partition, calm=True),
    Act(1, close_twice, calm=True),
    Act(4, control, calm=True),
    Act(1, pause, calm=True),
)

RICH = (Act(1, stop_group, calm=True), Act(2, redrive_some, calm=True))
"""In rich worlds only."""
