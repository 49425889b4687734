"""Writes the list of jars that are downloaded, with their checksums: `python requirements/lock_jars.py`.

Run by `make lock`. The package reads the result (`sidecar/devbroker/jars.lock`), so a download needs no resolution.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jgo.maven import Artifact, MavenContext, PythonResolver

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
# Kafka logs through slf4j 1.7; its own dependencies bring log4j but not the bridge between the two.
BRIDGE = "org.apache.logging.log4j:log4j-slf4j-impl"
PACKAGE = Path(__file__).parent.parent / "sidecar"
BROKER_LOCK = PACKAGE / "devbroker" / "jars.lock"


def main() -> None:
    """Resolve, download and write the lock file."""
    with tempfile.TemporaryDirectory() as cache:
        maven = MavenContext(resolver=PythonResolver(), repo_cache=Path(cache), timeout=60)
        roots, transitive = maven.resolver.resolve([maven.create_dependency(KAFKA)])
        wanted = {
            f"{jar.groupId}:{jar.artifactId}:{jar.version}": jar.artifact
            for jar in (*roots, *transitive)
            if jar.scope in (None, "compile", "runtime")
        }
        log4j = next(jar.version for jar in transitive if jar.artifactId == "log4j-core")
        bridge = f"{BRIDGE}:{log4j}"
        wanted[bridge] = maven.create_dependency(bridge).artifact
        write(BROKER_LOCK, f"{KAFKA} and all it needs at run time", wanted)


def write(lock: Path, what: str, artifacts: Mapping[str, Artifact]) -> None:
    """Write one lock file."""
    lines = [f"# {what}: coordinate, bytes, SHA-256. Written by `make lock`."]
    for coordinate, artifact in sorted(artifacts.items()):
        content = artifact.resolve().read_bytes()
        lines.append(f"{coordinate} {len(content)} {hashlib.sha256(content).hexdigest()}")
    lock.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
