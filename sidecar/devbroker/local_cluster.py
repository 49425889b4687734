"""Several Kafka nodes on this machine, to try and to test what happens when one of them fails.

    with LocalCluster() as cluster:
        cluster.active_controller().kill()

Each node is a broker and a controller: a process with a folder and a port for itself, of about 250 MB. Topics have
three replicas and `min.insync.replicas=2` unless they say otherwise, so one node may be away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sidecar.clock import SystemClock
from sidecar.devbroker.jars import DownloadProgress
from sidecar.devbroker.local_broker import LocalBroker, Membership, free_port, new_cluster_id, replicated
from sidecar.errors import BrokerUnavailable, CommandFailed

NODES: Final = 3
_REPLICAS, _IN_SYNC = 3, 2
_STOP_S = 8.0


class LocalCluster:
    """Three Kafka nodes in child processes; they end with this process, even when that is killed.

    Args:
        port: The port of the first node, the others have the next ones; 0 picks free ones. They survive restarts.
        data_dir: The folder for the nodes' folders; without one temporary ones, which `stop()` deletes unless `keep`.
        keep: Whether to leave the temporary folders.
        properties: Server properties of every node over the defaults.
        progress: Receives the progress of the download.
    """

    def __init__(
        self,
        port: int = 0,
        data_dir: Path | None = None,
        *,
        keep: bool = False,
        properties: Mapping[str, str] | None = None,
        progress: DownloadProgress | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute() if data_dir is not None else None
        ids = range(1, NODES + 1)
        folders = {node: self.data_dir / f"node-{node}" for node in ids} if self.data_dir is not None else {}
        ports: list[int] = []
        while len(ports) < 2 * NODES:
            ports.append(free_port(ports))
        controller_ports = dict(zip(ids, ports, strict=False))
        own_ports = {node: port + node - 1 if port else ports[NODES + node - 1] for node in ids}
        cluster_id = _cluster_id(list(folders.values())) or new_cluster_id()
        self.nodes: Sequence[LocalBroker] = [
            LocalBroker(
                own_ports[node],
                folders.get(node),
                keep=keep,
                properties=properties,
                progress=progress,
                membership=Membership(node, cluster_id, controller_ports, replicated(_REPLICAS, _IN_SYNC)),
            )
            for node in ids
        ]
        self._clock = SystemClock()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for `bootstrap.servers`."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def running(self) -> Sequence[LocalBroker]:
        """The nodes whose processes are alive."""
        return [node for node in self.nodes if node.running]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self, deadline_s: float = 120.0) -> None:
        """Start the nodes that do not run, and return when each of them answers.

        Args:
            deadline_s: The time from the start of the last node to the answer of all, without the download.

        Raises:
            PortInUse: Another process has one of the ports.
            BrokerUnavailable: A node ended early or did not answer in time.
            CommandFailed: As for `LocalBroker.start`, or the data folder holds a single broker.
        """
        if self.data_dir is not None and (self.data_dir / "topics").exists():
            raise CommandFailed(
                f"the data folder {self.data_dir} holds a broker that is alone; start it with --nodes 1, or choose "
                "another folder"
            )
        away = [node for node in self.nodes if not node.running]
        for node in away:
            node.launch()
        until_s = self._clock.monotonic_s() + deadline_s
        for node in away:
            node.await_answer(max(1.0, until_s - self._clock.monotonic_s()))

    def stop(self) -> None:
        """Shut all nodes down, and delete their temporary folders unless `keep`.

        The last two cannot leave in order: the controllers that could let them go are gone. They are killed, and lose
        nothing: what they wrote is in the system's cache, and the next start reads the end of their logs again.
        """
        if any(node.keep for node in self.nodes):
            for node in self.nodes:
                node.terminate()
            until_s = self._clock.monotonic_s() + _STOP_S
            for node in self.nodes:
                node.wait(max(0.0, until_s - self._clock.monotonic_s()))
        for node in self.nodes:
            node.abandon()

    def active_controller(self) -> LocalBroker:
        """Return the node that leads the controllers, by the quorum state of the running nodes.

        Raises:
            BrokerUnavailable: No running node knows a leader.
        """
        said = [_quorum_state(node) for node in self.running]
        epoch, leader = max(said, default=(-1, -1))
        if leader not in range(1, NODES + 1):
            raise BrokerUnavailable(f"no active controller is known (epoch {epoch})")
        return self.nodes[leader - 1]


def _cluster_id(folders: Sequence[Path]) -> str | None:
    """Return the cluster id that one of the folders is formatted with; None when all are empty."""
    for folder in folders:
        formatted = folder / "topics" / "meta.properties"
        if formatted.is_file():
            pairs = (line.partition("=") for line in formatted.read_text("utf-8").splitlines())
            return next((value.strip() for name, _, value in pairs if name.strip() == "cluster.id"), None)
    return None


def _quorum_state(node: LocalBroker) -> tuple[int, int]:
    """Return epoch and node id of the last leader of the controllers that a node knows of; -1 for none."""
    path = node.data_dir / "topics" / "__cluster_metadata-0" / "quorum-state"
    try:
        state = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return -1, -1
    return int(state["leaderEpoch"]), int(state["leaderId"])
