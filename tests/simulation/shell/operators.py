"""What operators do while sidecars run."""

from __future__ import annotations

from tests.simulation.shell.senders import GOOD_ORIGINS, NARROW, SHAKY
from tests.simulation.shell.world import CHANGELOG, DLQ, Act, World


def lower_limit(world: World) -> None:
    """Lower or raise what a topic takes; never below what good messages need."""
    name = world.rng.choice([NARROW, DLQ, CHANGELOG, *GOOD_ORIGINS])
    least = {NARROW: 800, DLQ: 1_200}.get(name, 4_000)
    world.cluster.topics[name].max_bytes = world.rng.choice([least, 2 * least, 1_000_000])
    world.say(name, "takes", world.cluster.topics[name].max_bytes)


def take_right(world: World) -> None:
    """Take away the right to write or to look at one origin, for a while."""
    topic = world.cluster.topics.get(SHAKY)
    if topic is None:
        return
    topic.may_write = False
    topic.may_describe = world.rng.random() < 0.6
    world.say("no right to", SHAKY)

    def give() -> None:
        topic.may_write = topic.may_describe = True

    world.until(world.rng.choice([1, 10, 40]), give)


def delete_origin(world: World) -> None:
    """Delete an origin, and make it again after a while."""
    topic = world.cluster.topics.get(SHAKY)
    if topic is None:
        return
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
    log = world.rng.choice(topic.logs)
    log.has_leader = False
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


def restart_partitions(world: World) -> None:
    """Somebody restarts the connector by HTTP."""
    world.rng.choice(world.processes).restarts.ask(world.rng.random() < 0.5)


ACTS = (
    Act(4, lower_limit, calm=True),
    Act(2, take_right, calm=True),
    Act(2, delete_origin, calm=True),
    Act(2, lose_origin_leader, calm=True),
    Act(2, grow_topic, calm=False),
    Act(4, compact, calm=True),
    Act(1, restart_partitions, calm=True),
)
