"""Builds wheel and sdist, reproducibly, and tries the wheel as users install it: `python -m tests.docs.distribution`.

Both are built in the repository, and again in the unpacked sdist: the bytes must be the same. `SOURCE_DATE_EPOCH` is
the time of the last commit unless it is set.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.metadata import Metadata

from tests.docs.pages import ROOT

DIST = ROOT / "dist"
CLIENT = Path("clients", "python")
"""The Python client, which has a distribution of its own."""
TWINE_VERSION = "7.0.0"
PAGE = ("index.html", "app.js", "style.css")
"""Of the dashboard; without them it would be an empty page."""


def source_date() -> str:
    """Return the seconds that stand in archives as the time of all files."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    # Without a repository, as in an unpacked sdist, any time will do: the earliest that a zip file can hold.
    return asked.stdout.strip() or "315532800"


def build(source: Path, folder: Path, *kinds: str) -> list[Path]:
    """Build into an empty folder, without a network, and return what was built.

    The wheel is the one for every platform; those with the compiled hot path come from `cibuildwheel`.
    """
    folder.mkdir(parents=True)
    targets = [word for kind in kinds for word in ("-t", kind)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *targets, "-d", str(folder)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": source_date(), "SIDECAR_HOT": "skip"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return sorted(folder.iterdir())


def build_reproducibly(scratch: Path, source: Path = ROOT) -> list[Path]:
    """Build sdist and wheel, both once more from the sdist, and return the first two.

    Raises:
        AssertionError: The bytes differ.
    """
    first = build(source, scratch / "first", "sdist", "wheel")
    sdist = next(path for path in first if path.name.endswith(".tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch / "unpacked", filter="data")
    (unpacked,) = (scratch / "unpacked").iterdir()
    sums = {path.name: checksum(path) for path in first}
    again = {path.name: checksum(path) for path in build(unpacked, scratch / "again", "sdist", "wheel")}
    assert again == sums, "what is built from the sdist is not what is built from the repository"
    return first


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_contents(wheel: Path) -> None:
    """Check that the wheel has what is no Python, and nothing of the repository besides the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {
        "sidecar/py.typed",
        "retry_sidecar/py.typed",
        "sidecar/devbroker/jars.lock",
        *(f"sidecar/api/static/{name}" for name in PAGE),
    }
    assert wanted <= names, f"not in the wheel: {wanted - names}"
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"sidecar", "retry_sidecar"}, roots


def check_metadata(archive: Path) -> None:
    """Check that an index would take an archive: its metadata is valid, and its description is Markdown."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            (name,) = (each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
            text = wheel.read(name)
    else:
        with tarfile.open(archive) as sdist:
            file = sdist.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert file is not None
            text = file.read()
    found = Metadata.from_email(text, validate=True)
    assert found.description_content_type == "text/markdown"
    assert found.description
    assert found.license_expression == "Apache-2.0"
    assert found.project_urls is not None
    assert "Source" in found.project_urls


def check_client(wheel: Path, folder: Path) -> None:
    """Check that the client's wheel has the client alone, and that it needs nothing besides Python.

    Args:
        wheel: The wheel.
        folder: An empty folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    assert {path.name for path in folder.iterdir() if path.suffix != ".dist-info"} == {"retry_sidecar"}
    assert (folder / "retry_sidecar" / "py.typed").exists()
    # -I: neither the environment nor the folder of the call adds anything to the path; -S: no installed packages.
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import retry_sidecar as r; r.Sidecar(); r.retry_record"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=folder, check=True)


def try_out(run: list[str], environment: Mapping[str, str], folder: Path) -> None:
    """Call the installed program, away from the repository.

    Args:
        run: The command up to its own arguments.
        environment: What it sees.
        folder: Where it is called.
    """
    for arguments in (["version"], ["--help"], ["run", "--show-settings"], ["topics", "create", "--help"]):
        done = subprocess.run(
            [*run, *arguments], cwd=folder, env=dict(environment), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


def install_and_try(wheel: Path, scratch: Path) -> None:
    """Install the wheel with what is locked into a new environment, and call it there."""
    place = scratch / "environment"
    venv.create(place, with_pip=True)
    python, program = place / "bin" / "python", place / "bin" / "retry-sidecar"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--require-hashes", "-r", str(ROOT / "requirements" / "run.lock")], check=True)
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    home = scratch / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    try_out([str(program)], environment, home)
    try_out([str(python), "-m", "sidecar"], environment, home)


def check_with_twine(built: list[Path], scratch: Path) -> None:
    """Check what the index's own tool checks before an upload."""
    place = scratch / "twine"
    venv.create(place, with_pip=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", f"twine=={TWINE_VERSION}"], check=True)
    subprocess.run([place / "bin" / "twine", "check", "--strict", *built], check=True)


def main() -> None:
    """Build, try, and leave the results in dist/."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        built = build_reproducibly(scratch)
        wheel = next(path for path in built if path.suffix == ".whl")
        check_contents(wheel)
        install_and_try(wheel, scratch)
        clients = build_reproducibly(scratch / "client", ROOT / CLIENT)
        check_client(next(path for path in clients if path.suffix == ".whl"), scratch / "unpacked-client")
        built += clients
        check_with_twine(built, scratch)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for path in built:
            shutil.copy(path, DIST)
            print(f"{checksum(path)}  dist/{path.name}")


if __name__ == "__main__":
    main()
