"""Toxiproxy between clients and the nodes of a cluster: one proxy for each node, and what it does to the bytes."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sidecar.devbroker.local_broker import HOST, free_port
from sidecar.devbroker.local_cluster import LocalCluster
from tests.waiting import eventually

_ANSWER_S: Final = 30.0
UP: Final = "upstream"
"""From the clients to the node."""
DOWN: Final = "downstream"


class Toxiproxy:
    """The proxies, which let everything through until told otherwise."""

    def __init__(self, program: Path, nodes: int) -> None:
        self.ports: list[int] = []
        """Of the proxies, where clients connect."""
        self._program = program
        self._names = [f"node-{number + 1}" for number in range(nodes)]
        self._api_port = free_port()
        taken = [self._api_port]
        for _ in range(nodes):
            taken.append(free_port(taken))
        self.ports = taken[1:]

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients that go by the proxies."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    @contextmanager
    def running(self, upstream_ports: Sequence[int]) -> Iterator[None]:
        """Run meanwhile, each proxy in front of one of these ports."""
        command = [str(self._program), "-host", HOST, "-port", str(self._api_port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: self._is_there(process), _ANSWER_S, "Toxiproxy answers")
            for name, port, upstream in zip(self._names, self.ports, upstream_ports, strict=True):
                self._call(
                    "POST", "/proxies", {"name": name, "listen": f"{HOST}:{port}", "upstream": f"{HOST}:{upstream}"}
                )
            yield
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def toxic(self, kind: str, stream: str, toxicity: float = 1.0, **attributes: int) -> Iterator[None]:
        """Do something to the bytes of all proxies meanwhile.

        Args:
            kind: The type of the toxic.
            stream: The way that the bytes take.
            toxicity: The share of the connections that it is for.
            attributes: Of that type.
        """
        body = {"name": kind, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        for name in self._names:
            self._call("POST", f"/proxies/{name}/toxics", body)
        try:
            yield
        finally:
            for name in self._names:
                self._call("DELETE", f"/proxies/{name}/toxics/{kind}")

    def _is_there(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, f"Toxiproxy ended with status {process.returncode}"
        try:
            self._call("GET", "/version")
        except OSError:
            return False
        return True

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        connection = http.client.HTTPConnection(HOST, self._api_port, timeout=_ANSWER_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status < 300, (method, path, answer.status, said)
        finally:
            connection.close()


@contextmanager
def proxied_cluster(program: Path) -> Iterator[tuple[LocalCluster, Toxiproxy]]:
    """Yield a cluster, and the proxies by which some clients reach it; all others connect directly."""
    cluster = LocalCluster()
    proxies = Toxiproxy(program, len(cluster.nodes))
    taken = [*proxies.ports, *(node.port for node in cluster.nodes)]
    upstream_ports: list[int] = []
    for node, proxy_port in zip(cluster.nodes, proxies.ports, strict=True):
        upstream_ports.append(free_port([*taken, *upstream_ports]))
        node.also_listen(upstream_ports[-1], proxy_port)
    with cluster, proxies.running(upstream_ports):
        yield cluster, proxies
