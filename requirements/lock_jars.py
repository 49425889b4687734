"""Writes the list of jars that are downloaded, with their checksums: `python requirements/lock_jars.py`.

Run by `make lock`. The package reads the results (`sidecar/devbroker/jars.lock`, `sidecar/spark/s3.lock`), so a
download needs no resolution.
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
# Hadoop's file system of S3, of the version that Spark has, and what of Amazon's SDK it uses: the bundle that it names
# as its dependency has 690 MB. The checkpoint file manager of Spark 4.1 is built on the classes of 4.2.
SDK = "2.35.4"
SDK_PARTS = (
    *("annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol"),
    *("checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws"),
    *("http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi"),
    *("netty-nio-client", "profiles", "protocol-core", "regions", "retries", "retries-spi", "s3"),
    *("s3-transfer-manager", "sdk-core", "sts", "third-party-jackson-core", "utils", "utils-lite"),
)
S3 = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1",
    "org.reactivestreams:reactive-streams:1.0.4",
    "software.amazon.eventstream:eventstream:1.0.1",
    # Hadoop's audit of requests, which is on by default, has constants from it.
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    *(f"software.amazon.awssdk:{part}:{SDK}" for part in SDK_PARTS),
)
S3_LOCK = PACKAGE / "spark" / "s3.lock"


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
        s3 = {coordinate: maven.create_dependency(coordinate).artifact for coordinate in S3}
        write(S3_LOCK, "Hadoop's file system of S3", s3)


def write(lock: Path, what: str, artifacts: Mapping[str, Artifact]) -> None:
    """Write one lock file."""
    lines = [f"# {what}: coordinate, bytes, SHA-256. Written by `make lock`."]
    for coordinate, artifact in sorted(artifacts.items()):
        content = artifact.resolve().read_bytes()
        lines.append(f"{coordinate} {len(content)} {hashlib.sha256(content).hexdigest()}")
    lock.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
