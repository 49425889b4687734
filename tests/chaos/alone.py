"""Faults that come one at a time, to a whole cluster whose instances all run: each says what must come of it.

What they take away from the changelog, the ledger is told: transactions that only the changelog lost, and those that
stood in a changelog which is deleted.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from sidecar.changelog.codec import CHECKPOINT_KEY, decode_checkpoint
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.devbroker.local_cluster import LocalCluster
from sidecar.kafka.idle_group import stable_offsets
from sidecar.runtime.transaction.commit import Step
from sidecar.store.folder import DATABASE
from tests.broker import Read, partitions_of, read_committed
from tests.integration.cluster.faults import LONG_S
from tests.integration.cluster.roles import leader
from tests.integration.control.test_control import settings_of
from tests.integration.control_history import Turn, turn_of
from tests.integration.exactly_once.test_changelog_lost import DECISION, delete_changelog, make_changelog
from tests.integration.exactly_once.test_changelog_lost import command as state_command
from tests.integration.exactly_once.test_fencing import DECIDED_S
from tests.integration.killable import command
from tests.integration.markers import abort_part, open_producers
from tests.integration.scenarios import SESSION, share
from tests.integration.sidecars import Sidecar, Sidecars, Stage
from tests.waiting import eventually

WHOLE_S: Final = 900.0
"""All partitions run again by then, whatever was before, on a machine that has other work."""
_KILLED: Final = 0.3
_FORGETS: Final = 0.3
_AT_REST: Final = 3
"""So many equal answers in a row say that nothing more comes from instances that stand still."""


class Alone:
    """Does the damage, acts as the operator where one is needed, and requires what must come of it.

    Args:
        dice: Seeded.
        cluster: The three nodes.
        stage: The topics.
        sidecars: Makes further instances.
        gone: Receives the instances that are ended on purpose.
    """

    def __init__(
        self, dice: random.Random, cluster: LocalCluster, stage: Stage, sidecars: Sidecars, gone: set[Sidecar]
    ) -> None:
        self.kills = 0
        self.rolled_back: defaultdict[int, list[Turn]] = defaultdict(list)
        """By partition the transactions that only the changelog lost."""
        self.earlier: defaultdict[int, list[Turn]] = defaultdict(list)
        """By partition the transactions of changelogs that were deleted."""
        self.acts: dict[str, Callable[[Sequence[Sidecar]], bool]] = {
            "a transaction is rolled back in the changelog alone": self._roll_back_a_part,
            "the changelog is made anew": self._make_the_changelog_anew,
            "the committed offsets expire": self._let_offsets_expire,
            "two instances have one INSTANCE_ID": self._start_a_twin,
        }
        """By name; each takes the instances that run, and tells whether there was a fault."""
        self._dice = dice
        self._cluster = cluster
        self._stage = stage
        self._sidecars = sidecars
        self._gone = gone

    def act(self, name: str, running: Sequence[Sidecar]) -> bool:
        """Let a fault come. Raises AssertionError when what must come of it did not."""
        self._await_all(running)
        return self.acts[name](running)

    def _await_all(self, running: Sequence[Sidecar]) -> None:
        names = ", ".join(each.name for each in running)
        eventually(lambda: share(*running), WHOLE_S, f"all partitions run, at {names}")

    def _end(self, instance: Sidecar) -> None:
        self._gone.add(instance)
        if self._dice.random() < _KILLED:
            instance.kill()
            self.kills += 1
        else:
            instance.stop(LONG_S)

    # A part is rolled back

    def _roll_back_a_part(self, running: Sequence[Sidecar]) -> bool:
        """Abort the changelog's part of a transaction in one partition; the instance commits the rest and dies."""
        instance = self._dice.choice(running)
        last = self._dice.choice((Step.COMMITTED, Step.APPLIED))
        armed = instance.state_dir.with_suffix(".armed")
        armed.unlink(missing_ok=True)
        instance.stop(LONG_S)
        instance.start(command(freeze_at=Step.OFFSETS_SENT, kill_at=last, armed_by=armed, sees=True))
        self._await_all(running)
        owned = sorted(instance.partitions())
        armed.touch()
        eventually(instance.frozen, LONG_S, f"{instance.name} stands still before it commits")
        self._gone.add(instance)
        failed = instance.log.count("transaction_failed")
        try:
            aborted = self._abort_one_of(self._dice.sample(owned, len(owned)))
        finally:
            instance.thaw()
        status = instance.wait(LONG_S)
        assert status == -signal.SIGKILL, f"{instance.name} ended with {status} and not behind its commit"
        self.kills += 1
        if self._dice.random() < _FORGETS:
            instance.forget_state()
        if aborted is None or instance.log.count("transaction_failed") > failed:
            return False  # nothing was rolled back, or all of it was, and it died behind a later one
        number, turn = aborted
        self.rolled_back[number].append(turn)
        return True

    def _abort_one_of(self, numbers: Sequence[int]) -> tuple[int, Turn] | None:
        """Abort what is open in one of these partitions of the changelog; return its number and the transaction.

        None: no part is whole. A slow machine sends the offsets while records are still on their way.
        """
        stage, topic = self._stage, self._stage.changelog_topic
        for number in numbers:
            node = leader(self._cluster, topic, number)
            for open_one in open_producers(node.bootstrap_servers, topic, number):
                starts = {number: open_one.first_offset}
                written = read_committed(stage.bootstrap, [topic], LONG_S, starts=starts, isolation="read_uncommitted")
                if checkpoints := _checkpoints(written):  # the last record of each part
                    abort_part(node.bootstrap_servers, topic, number)
                    return number, turn_of(checkpoints[-1])
        return None

    # The changelog is made anew

    def _make_the_changelog_anew(self, running: Sequence[Sidecar]) -> bool:
        """Delete it and make it again while instances run, and rebuild it as the runbook says."""
        topic = self._stage.changelog_topic
        ends = dict.fromkeys(range(self._stage.partitions), 0)
        eventually(lambda: self._keep(ends) > 0, WHOLE_S, "every partition has something to lose")
        # They stand still, so that every transaction of the former topic is known.
        for each in running:
            each.freeze()
        try:
            self._keep(ends)
            open_ones = self._open_ones(ends)
            delete_changelog(self._stage)
            for node in self._cluster.nodes:
                eventually(partial(self._is_gone, node.bootstrap_servers), LONG_S, "the changelog is gone everywhere")
            make_changelog(self._stage)
        finally:
            for each in running:
                each.thaw()
        eventually(lambda: self._decisions(running) == self._stage.partitions, WHOLE_S, "readyz names the decision")
        for each in running:
            self._gone.add(each)
            each.stop(LONG_S)
        self._keep_those_that_ended(open_ones, read_committed(self._stage.bootstrap, [topic], LONG_S))
        self._rebuild()
        return True

    def _is_gone(self, node: str) -> bool:
        return partitions_of(node, self._stage.changelog_topic) == 0

    def _keep(self, ends: dict[int, int]) -> int:
        """Keep the transactions behind these offsets of the changelog, move these behind them and return the least."""
        topic = self._stage.changelog_topic
        for each in _checkpoints(read_committed(self._stage.bootstrap, [topic], WHOLE_S, starts=ends)):
            self.earlier[each.partition].append(turn_of(each))
            ends[each.partition] = each.offset + 1
        return min(ends.values())

    def _open_ones(self, ends: dict[int, int]) -> Sequence[Read]:
        """Return the checkpoints behind these offsets that are open, or that are aborted and have not been tried again.

        What is tried again has the same sequence.
        """
        topic, looks = self._stage.changelog_topic, list[Sequence[Read]]()

        def at_rest() -> bool:
            isolation = "read_uncommitted"
            found = read_committed(self._stage.bootstrap, [topic], LONG_S, starts=ends, isolation=isolation)
            looks.append(_checkpoints(found))
            return len(looks) >= _AT_REST and all(each == looks[-1] for each in looks[-_AT_REST:])

        eventually(at_rest, LONG_S, "no instance writes")
        last = {(each.partition, decode_checkpoint(each.value or b"").sequence): each for each in looks[-1]}
        return list(last.values())

    def _keep_those_that_ended(self, open_ones: Sequence[Read], present: Sequence[Read]) -> None:
        """Keep those that were committed when their topic was gone: the group's offset has the mark of one at least
        as late, and what is in the new topic is no second try of it.
        """
        marks = self._marks()
        written = {(each.partition, decode_checkpoint(each.value or b"").sequence) for each in _checkpoints(present)}
        for each in open_ones:
            sequence = decode_checkpoint(each.value or b"").sequence
            mark = marks.get(each.partition)
            if mark is not None and mark.sequence >= sequence and (each.partition, sequence) not in written:
                self.earlier[each.partition].append(turn_of(each))

    def _marks(self) -> dict[int, OffsetMark | None]:
        stage = self._stage
        offsets = stable_offsets(settings_of(stage), range(stage.partitions), WHOLE_S)
        return {number: OffsetMark.parse(each.metadata) for number, each in offsets.items()}

    def _decisions(self, running: Iterable[Sidecar]) -> int:
        """Return for how many partitions /readyz names what an operator has to decide."""
        bodies = [each.get("/readyz")[1] for each in running]
        reasons = [reason for body in bodies if body for reason in body["reasons"]]
        return sum(all(word in each for word in DECISION) for each in reasons)

    def _rebuild(self) -> None:
        """Write the changelog again from each folder in turn; a folder that has nothing to give is deleted."""
        folders = [each for each in self._sidecars.all if (each.state_dir / DATABASE).is_dir()]
        said: dict[str, dict[str, Any]] = {}
        for each in self._dice.sample(folders, len(folders)):
            done = eventually(partial(self._rebuilt, each), WHOLE_S, "the group has no members")
            assert done is not None
            assert done.stdout, f"rebuild-changelog of {each.name}: {done.stderr}"
            said[each.name] = json.loads(done.stdout)["partitions"]
        whole = {number for told in said.values() for number, each in told.items() if each["outcome"] != "refused"}
        assert len(whole) == self._stage.partitions, f"only {sorted(whole)} were rebuilt: {said}"
        for each in folders:
            if any(told["outcome"] == "refused" for told in said[each.name].values()):
                each.forget_state()

    @staticmethod
    def _rebuilt(instance: Sidecar) -> subprocess.CompletedProcess[str] | None:
        """Run the command with a folder; None while it finds members in the group, as static ones stay for a while."""
        done = state_command(instance, "rebuild-changelog", "--json")
        return None if "stop all instances first" in done.stderr else done

    # The others

    def _let_offsets_expire(self, running: Sequence[Sidecar]) -> bool:
        """Delete the group with its offsets, as brokers do in time, while no instance runs."""
        for each in running:
            self._end(each)
        eventually(self._group_is_deleted, WHOLE_S, "the group has no members")
        return True

    def _group_is_deleted(self) -> bool:
        group = self._stage.group_id
        # One that has worked before may ask a former coordinator for ever (librdkafka #5511).
        admin = AdminClient({"bootstrap.servers": self._stage.bootstrap})
        try:
            admin.delete_consumer_groups([group])[group].result(LONG_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code not in {KafkaError.NON_EMPTY_GROUP, KafkaError._TIMED_OUT, KafkaError.GROUP_ID_NOT_FOUND}:
                raise
            return bool(code == KafkaError.GROUP_ID_NOT_FOUND)
        return True

    def _start_a_twin(self, running: Sequence[Sidecar]) -> bool:
        """Start another instance with the INSTANCE_ID of one: that one ends and says why, and the other goes on."""
        named = [each for each in running if "KAFKA_RETRY_INSTANCE_ID" in each.environment]
        if not named:
            return False
        old = self._dice.choice(named)
        name = old.environment["KAFKA_RETRY_INSTANCE_ID"]
        count = sum(each.name.startswith("twin") for each in self._sidecars.all)
        twin = self._sidecars.make(f"twin-{count + 1}", self._stage, INSTANCE_ID=name, **SESSION)
        twin.start()
        try:
            eventually(lambda: not (old.running and twin.running), DECIDED_S, f"one of the two named {name} ends")
            assert twin.running, f"the later of two named {name} ended"
            self._gone.add(old)
            said = old.log.splitlines()[-1]
            expected = f"has INSTANCE_ID {name} too; give every running instance a different INSTANCE_ID"
            assert old.status == 1, f"{old.name} ended with {old.status}: {said}"
            assert said.endswith(expected), f"{old.name} said {said!r}"
            self._await_all([*(each for each in running if each is not old), twin])
        finally:
            if twin.running:
                twin.stop(LONG_S)
            twin.forget_state()
        return True


def _checkpoints(records: Iterable[Read]) -> Sequence[Read]:
    return sorted((each for each in records if each.key == CHECKPOINT_KEY), key=lambda each: each.offset)
