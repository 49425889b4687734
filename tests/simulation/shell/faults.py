"""Faults of processes, brokers, disks, clocks and the network."""

from __future__ import annotations

from typing import Final

from sidecar.runtime.transaction.commit import Step
from tests.simulation.fakes.group import SESSION_S
from tests.simulation.fakes.library import DOUBTS
from tests.simulation.shell.operators import control
from tests.simulation.shell.process import Process
from tests.simulation.shell.world import CHANGELOG, INPUT, Act, World

SHORT_S = (0.3, 2.0, 7.0)
CHANGED: Final = 4
LONG_S = (0.3, 2.0, 7.0, 15.0, 30.0)


def _one(world: World) -> Process:
    return world.rng.choice(world.processes)


def kill(world: World) -> None:
    """A process dies, at once or at a step of the commit order, and another starts on its disk or on an empty one."""
    process = _one(world)
    if not process.is_up:
        return
    if world.rng.random() < 0.6:
        process.dies_at = world.rng.choice(list(Step))
        world.say(process.name, "dies at", process.dies_at)
        world.rounds(world.rng.randint(1, 6))
    if process.is_up:
        process.kill()
    world.say(process.name, "was killed")
    if world.rng.random() < 0.2:
        process.disk.wipe()
    world.until(world.rng.choice(LONG_S), process.start)


def stop(world: World) -> None:
    """An orderly restart."""
    process = _one(world)
    if process.is_up:
        world.say(process.name, "is stopped")
        process.stop()
        world.until(world.rng.choice(SHORT_S), process.start)


def freeze(world: World) -> None:
    """A process stands still: paused by its machine, collecting garbage."""
    process, seconds = _one(world), world.rng.choice(LONG_S)
    process.freeze(seconds)
    world.say(process.name, "is frozen for", seconds)


def cut(world: World) -> None:
    """No packet passes between one process and the brokers, or none comes back."""
    process, seconds = _one(world), world.rng.choice(LONG_S)
    if world.rng.random() < 0.5:
        process.link.cut = True
    else:
        process.link.loses_answers = True
    world.say(process.name, "is cut off for", seconds)

    def mend() -> None:
        process.link.cut = process.link.loses_answers = False

    world.until(seconds, mend)


def slow(world: World) -> None:
    """A slow link or a quota."""
    process = _one(world)
    process.link.bytes_per_s = world.rng.choice([500, 2_000, 20_000])
    process.link.round_trip_s = world.rng.choice([0.002, 0.2, 1.0])
    world.say(process.name, "has a slow link", process.link.bytes_per_s)

    def mend() -> None:
        process.link.bytes_per_s, process.link.round_trip_s = 1e9, 0.002

    world.until(world.rng.choice(LONG_S), mend)


def brokers_away(world: World) -> None:
    """No broker answers; what was committed just before may be taken back by their restart."""
    cluster = world.cluster
    cluster.away = True
    taken = cluster.take_back() if world.rng.random() < 0.5 else 0
    world.say("the brokers are away;", taken, "commits are taken back")

    def back() -> None:
        cluster.away = False

    world.until(world.rng.choice(LONG_S), back)


def roll_back_part(world: World) -> None:
    """The brokers go away and come back: one partition, or the group's offsets, lack what else is committed."""
    cluster = world.cluster
    cluster.markers_wait = True
    for _ in range(20):
        world.rounds(len(world.processes))
        number = world.rng.randrange(len(cluster.topics[CHANGELOG].logs))
        what = world.rng.choice(["open", "changelog", "offsets"])
        if what == "open" and cluster.leave_open(CHANGELOG, number):
            world.say("the brokers leave a transaction open in", CHANGELOG, number)
            world.until(40.0, cluster.abort_left)  # of an owner that has not ended it, an operator does
            break
        if what != "open" and cluster.take_back_part(CHANGELOG if what == "changelog" else None, number):
            world.say("the brokers roll back the", what, number)
            break
    cluster.markers_wait = False


def move_coordinator(world: World) -> None:
    """The coordinator is loading; markers may not be written meanwhile."""
    cluster = world.cluster
    cluster.coordinator_away = True
    cluster.markers_wait = world.rng.random() < 0.5
    world.say("the coordinator moves")

    def back() -> None:
        cluster.coordinator_away = cluster.markers_wait = False

    world.until(world.rng.choice(SHORT_S), back)


def lose_leader(world: World) -> None:
    """One partition of one topic has no leader, or takes no writes."""
    topic = world.rng.choice(list(world.cluster.topics.values()))
    log = world.rng.choice(topic.logs)
    if world.rng.random() < 0.5:
        log.has_leader = False
    else:
        log.takes_writes = False
    world.say(topic.name, "has trouble with a partition")

    def mend() -> None:
        log.has_leader = log.takes_writes = True

    world.until(world.rng.choice(LONG_S), mend)


def rebalance(world: World) -> None:
    """The group joins again."""
    world.cluster.group.rebalance()
    world.say("rebalance")


def hang(world: World) -> None:
    """A request for the coordinator is never answered."""
    process = _one(world)
    if process.producer is not None:
        process.producer.library.hangs = True
        world.say(process.name, "hangs")


def doubt(world: World) -> None:
    """A broker does not know of the transaction that a batch belongs to."""
    process = _one(world)
    if process.producer is not None:
        process.producer.library.doubt = world.rng.choice(DOUBTS)
        world.say(process.name, "will be answered", process.producer.library.doubt)


def break_disk(world: World) -> None:
    """The disk is full for a while, or a file is damaged."""
    process = _one(world)
    if world.rng.random() < 0.5:
        process.disk.is_corrupt = True
        world.say(process.name, "has a damaged disk")
        return
    process.disk.is_full = True
    world.say(process.name, "has a full disk")

    def free() -> None:
        process.disk.is_full = False

    world.until(world.rng.choice(LONG_S), free)


def flush(world: World) -> None:
    """The store flushes by itself."""
    _one(world).disk.flush()


def tear(world: World) -> None:
    """A process dies while it writes to its store, and a part of the changes is found on the disk."""
    process = _one(world)
    process.start()
    process.disk.tears = world.rng.random()
    world.say(process.name, "dies in its next large write")
    for _ in range(3):
        _send_to_all(world)
        world.wait(SESSION_S / 3, lambda: not process.is_up)
    process.disk.tears = None
    process.start()


def _send_to_all(world: World) -> None:
    """Something good arrives in each partition."""
    now_ms = world.timeline.now_ms()
    for number in range(len(world.cluster.topics[INPUT].logs)):
        world.place(world.senders.good(now_ms), number)
        world.place(world.senders.far(now_ms), number)


def rebuild(world: World) -> None:
    """A process builds its store anew, on the folder of another cluster or an empty one, and dies once or twice."""
    process = _one(world)
    process.start()
    _send_to_all(world)
    world.wait(SESSION_S)
    for _ in range(CHANGED):
        control(world)
    world.wait(1.0)
    process.kill()
    if not (process.disk.is_full or process.disk.is_corrupt) and world.rng.random() < 0.5:
        process.disk.make_foreign()
    else:
        process.disk.wipe()
    world.say(process.name, "builds its store anew")
    for files in world.rng.sample([1, 2, 3], world.rng.choice([0, 1, 2])):
        process.disk.files_left = files
        process.start()
        world.wait(2 * SESSION_S, lambda: not process.is_up)
    process.disk.files_left = None
    process.start()


def step_clock(world: World) -> None:
    """A wall clock steps, by less or by more than is allowed."""
    process = _one(world)
    process.clock.ahead_ms = world.rng.choice([-200_000, -5_000, -1, 1, 5_000, 200_000, 0])
    world.say("the clock of", process.name, "is off by", process.clock.ahead_ms)


def deny_own_topics(world: World) -> None:
    """The right to write a DLQ or the changelog, or to use the group, goes away for a while."""
    rng, topics, group = world.rng, world.cluster.topics, world.cluster.group
    name = rng.choice([*world.dlqs, CHANGELOG, "group"])
    world.say("no right to", name)
    if name == "group":
        group.may_read = False
    else:
        topics[name].may_write = False

    def give() -> None:
        group.may_read = True
        for topic in (*world.dlqs, CHANGELOG):
            topics[topic].may_write = True

    world.until(rng.choice(SHORT_S), give)


def set_back(world: World) -> None:
    """All are stopped, an operator sets the group's offsets back, and they start again."""
    if world.ledger.is_rolled_back:
        return  # without the mark in the group's offset nothing would tell of it
    for process in world.processes:
        process.stop()
    world.rounds(10)
    group = world.cluster.group
    for partition, offset in list(group.offsets.items()):
        to = max(0, offset - world.rng.randint(0, 10))
        if to < offset and group.is_stable(partition):
            group.set_offset(partition, to)
            world.ledger.set_back(partition, to)
            world.say("offset of", partition, "set back to", to)
    for process in world.processes:
        process.start()


def expire_offsets(world: World) -> None:
    """All are stopped for longer than the brokers keep the offsets of a group without members."""
    for process in world.processes:
        process.stop()
    world.rounds(10)
    group = world.cluster.group
    if all(map(group.is_stable, range(group.partitions))):
        group.offsets.clear()
        group.metadata.clear()
        world.ledger.expired()
        world.say("the group's offsets expire")
    for process in world.processes:
        process.start()


def duplicate(world: World) -> None:
    """Another process with the identity of one that runs, on a disk of its own, until somebody stops it."""
    original = _one(world)
    if len({each.instance_id for each in world.processes}) < len(world.processes) or not original.is_up:
        return
    twin = world.process(original.name + "-twin", original.instance_id)
    world.processes.append(twin)
    twin.start()
    world.say(twin.name, "is started")

    def end() -> None:
        twin.kill()
        twin.is_gone = True
        world.processes.remove(twin)
        original.start()

    world.until(world.rng.choice(LONG_S), end)


ACTS = (
    Act(4, kill, calm=False),
    Act(2, stop, calm=False),
    Act(2, freeze, calm=False),
    Act(2, cut, calm=False),
    Act(2, slow, calm=False),
    Act(2, brokers_away, calm=False),
    Act(2, move_coordinator, calm=False),
    Act(3, lose_leader, calm=False),
    Act(3, rebalance, calm=False),
    Act(1, hang, calm=False),
    Act(2, doubt, calm=False),
    Act(2, duplicate, calm=False),
    Act(1, break_disk, calm=False),
    Act(4, flush, calm=True),
    Act(2, step_clock, calm=False),
    Act(2, deny_own_topics, calm=False),
    Act(1, set_back, calm=False),
)

RICH = (Act(2, tear, calm=False), Act(2, rebuild, calm=False), Act(1, expire_offsets, calm=False))
"""In rich worlds only."""

ROLL_BACKS = Act(6, roll_back_part, calm=False)
"""In some worlds only."""
