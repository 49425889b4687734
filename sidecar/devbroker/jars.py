"""The jars of Apache Kafka, downloaded once from Maven Central into the user's cache.

`jars.lock` names every jar with its size and SHA-256, so nothing is resolved at run time and no unknown jar is ever
started. The manifest is written last: a cache without one has an interrupted download and is not used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.resources
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import platformdirs

from sidecar.errors import CommandFailed

if TYPE_CHECKING:
    from sidecar.devbroker.download import JarDownload

INSTALL = "pip install '.[demo]' in the source tree"
KAFKA_VERSION = "4.3.1"
_DOWNLOADS_AT_ONCE = 8
_ATTEMPTS = 3
_MANIFEST = "complete"


class DownloadProgress(Protocol):
    """Receives the progress of a download. Calls come from several threads, one at a time."""

    def begin(self, files: int, bytes_total: int) -> None:
        """Receive what the cache lacks; not called when it is complete."""
        ...

    def received(self, bytes_count: int) -> None:
        """Receive the number of bytes that have arrived since the last call."""
        ...

    def finished(self, file: str) -> None:
        """Receive the name of a file that is complete and has the right checksum."""
        ...


class Quiet:
    """A download progress that shows nothing."""

    def begin(self, files: int, bytes_total: int) -> None:
        """Show nothing."""

    def received(self, bytes_count: int) -> None:
        """Show nothing."""

    def finished(self, file: str) -> None:
        """Show nothing."""


class Jar(NamedTuple):
    """One line of the lock file."""

    coordinate: str
    bytes_count: int
    sha256: str

    @property
    def path(self) -> Path:
        """The path in a Maven repository, relative to its root."""
        group, artifact, version = self.coordinate.split(":")
        return Path(*group.split("."), artifact, version, f"{artifact}-{version}.jar")


def locked_jars(package: str = "sidecar.devbroker", name: str = "jars.lock") -> tuple[Jar, ...]:
    """Return the jars of a lock file of the package, by default that of the broker."""
    lines = importlib.resources.files(package).joinpath(name).read_text("ascii").splitlines()
    parts = (line.split() for line in lines if not line.startswith("#"))
    return tuple(Jar(coordinate, int(size), sha256) for coordinate, size, sha256 in parts)


def cache_folder() -> Path:
    """Return the folder of this user's jars."""
    return platformdirs.user_cache_path("retry-sidecar") / f"kafka-{KAFKA_VERSION}"


def classpath(progress: DownloadProgress, folder: Path | None = None) -> str:
    """Return a Java class path of the broker, downloading what is missing.

    Needs no network once the cache is complete. Of processes that start together one downloads and the others wait.

    Raises:
        CommandFailed: A jar cannot be downloaded, or the cache cannot be written.
    """
    return ":".join(map(str, jar_files(locked_jars(), progress, folder or cache_folder())))


def jar_files(jars: tuple[Jar, ...], progress: DownloadProgress, folder: Path) -> tuple[Path, ...]:
    """Return the files of these jars, downloading what is missing. Raises CommandFailed, see `classpath`."""
    if not _complete(folder, jars):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _only_one(folder):
                if not _complete(folder, jars):
                    _download(folder, jars, progress)
        except OSError as error:
            raise CommandFailed(
                f"the cache {folder} cannot be written ({error}); set XDG_CACHE_HOME to a writable folder"
            ) from error
    return tuple(folder / jar.path for jar in jars)


def _complete(folder: Path, jars: tuple[Jar, ...]) -> bool:
    """Return whether the manifest names exactly these jars and each has its size; a start does not hash 45 MB."""
    manifest = folder / _MANIFEST
    if not manifest.is_file() or manifest.read_text("ascii") != _manifest(jars):
        return False
    files = (folder / jar.path for jar in jars)
    return all(file.is_file() and file.stat().st_size == jar.bytes_count for file, jar in zip(files, jars, strict=True))


def _manifest(jars: tuple[Jar, ...]) -> str:
    return "".join(f"{jar.sha256} {jar.path}\n" for jar in jars)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the download lock; the operating system releases it even when this process is killed."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(folder: Path, jars: tuple[Jar, ...], progress: DownloadProgress) -> None:
    missing = [jar for jar in jars if not _has_checksum(folder / jar.path, jar)]
    one_at_a_time = Lock()

    def received(bytes_count: int) -> None:
        with one_at_a_time:
            progress.received(bytes_count)

    maven = _maven(folder, received)

    def fetch(jar: Jar) -> None:
        _fetch(maven, folder, jar)
        with one_at_a_time:
            progress.finished(jar.path.name)

    progress.begin(len(missing), sum(jar.bytes_count for jar in missing))
    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        for done in [pool.submit(fetch, jar) for jar in missing]:
            try:
                done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    # The manifest is last: without it the next start checks every file again.
    (folder / _MANIFEST).write_text(_manifest(jars), encoding="ascii")


def _maven(folder: Path, received: Callable[[int], None]) -> JarDownload:
    try:
        from sidecar.devbroker.download import JarDownload  # noqa: PLC0415 - jgo is an extra
    except ImportError as cause:
        raise CommandFailed(f"the package {cause.name}, which downloads jars, is not installed: {INSTALL}") from cause
    return JarDownload(folder, received)


def _fetch(maven: JarDownload, folder: Path, jar: Jar) -> None:
    """Download one jar, and try again when the connection breaks."""
    file = folder / jar.path
    problem = ""
    for _ in range(_ATTEMPTS):
        # The resolver would take the rest of an interrupted download for the whole file.
        file.unlink(missing_ok=True)
        if problem := maven.fetch(jar.coordinate):
            continue
        if _has_checksum(file, jar):
            return
        problem = "the file does not have the expected SHA-256"
    raise CommandFailed(
        f"{jar.coordinate} cannot be downloaded: {problem}. "
        "Maven Central must be reachable once (HTTPS_PROXY and REQUESTS_CA_BUNDLE are used), "
        f"or a mirror named under [repositories] in ~/.config/jgo.conf; or copy {folder} from another machine."
    )


def _has_checksum(file: Path, jar: Jar) -> bool:
    if not file.is_file() or file.stat().st_size != jar.bytes_count:
        return False
    return hashlib.sha256(file.read_bytes()).hexdigest() == jar.sha256
