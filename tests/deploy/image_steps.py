"""Carries out the steps of the Dockerfile in folders, with chroot: for machines without a container engine.

What it knows is what our Dockerfile uses: FROM, ARG, ENV, WORKDIR, COPY, RUN. It needs root, and makes the base image
from Debian's packages with debootstrap: the same release and Python, not the same bytes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.deploy.test_image import INSTRUCTIONS, STAGES
from tests.deploy.tools import REPOSITORY

RELEASE: Final = "trixie"
PACKAGES: Final = "python3,python3-venv,libpython3-dev,ca-certificates"
ARCHIVE: Final = "http://deb.debian.org/debian"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NETWORK: Final = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""How this machine reaches the package indexes; a container engine gives its containers the same."""
ENTER: Final = (
    'mount --bind /dev "$1/dev" && mount -t proc proc "$1/proc" && exec chroot --userspec="$2" "$1" sh -c "$3"'
)
LONGEST_S: Final = 1_800


class Failed(Exception):
    """A step ended with another status than 0; the text is what it printed."""


class Stage:
    """A stage that is built: its files, and what its instructions have set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = "/"
        self.environment = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
        self.arguments: dict[str, str] = {}

    def copy(self, root: Path) -> Stage:
        """Return another stage that begins where this one ends."""
        # Not with shutil: that would read device files, which never end.
        subprocess.run(["cp", "--archive", self.root, root], check=True, timeout=LONGEST_S)
        made = Stage(root)
        made.folder, made.environment = self.folder, dict(self.environment)
        return made

    def run(self, words: list[str], user: str = "0:0") -> subprocess.CompletedProcess[str]:
        """Run a program in the stage and return what it says."""
        pip = {name: text for name, text in os.environ.items() if name.startswith("PIP_") and name != "PIP_FIND_LINKS"}
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(words)}"
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(self.root), user, inside],
            env={**pip, **self.arguments, **self.environment},
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )


class Image:
    """The stages of the Dockerfile, each built when it is asked for.

    Args:
        folder: An empty folder for the files of all stages.
        debootstrap: The program.
    """

    def __init__(self, folder: Path, debootstrap: Path) -> None:
        self._folder = folder
        self._base = Stage(folder / "debian")
        self._built: dict[str, Stage] = {}
        command = [
            str(debootstrap),
            "--variant=minbase",
            f"--include={PACKAGES}",
            RELEASE,
            str(self._base.root),
            ARCHIVE,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        if done.returncode:
            raise Failed(done.stdout + done.stderr)
        for file in filter(os.path.exists, NETWORK):
            shutil.copy(file, self._base.root / file[1:])

    def stage(self, name: str) -> Stage:
        """Return a stage, after all that it is made from."""
        if name not in self._built:
            begin = next(
                at for at, each in enumerate(INSTRUCTIONS) if each[0] == "FROM" and each[1].endswith(f" AS {name}")
            )
            source = INSTRUCTIONS[begin][1].split(" AS ")[0]
            made = (self.stage(source) if source in STAGES else self._base).copy(self._folder / name)
            for word, rest in INSTRUCTIONS[begin + 1 :]:
                if word == "FROM":
                    break
                self._carry_out(made, word, rest)
            self._built[name] = made
        return self._built[name]

    def _carry_out(self, stage: Stage, word: str, rest: str) -> None:
        match word:
            case "RUN":
                done = stage.run(["/bin/sh", "-c", rest])
                if done.returncode:
                    raise Failed(f"RUN {rest}\n{done.stdout}{done.stderr}")
            case "ENV":
                for name, text in re.findall(r"(\w+)=(\S+)", rest):
                    stage.environment[name] = text.replace("$PATH", stage.environment["PATH"])
            case "ARG" if "=" in rest:
                name, _, text = rest.partition("=")
                stage.arguments[name] = text.strip('"')
            case "WORKDIR":
                stage.folder = rest
                (stage.root / rest[1:]).mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(stage, rest.split())
            case _:
                pass  # what a container engine does when the container runs

    def _copy(self, stage: Stage, words: list[str]) -> None:
        source = REPOSITORY
        if words[0].startswith("--from="):
            source = self.stage(words.pop(0).removeprefix("--from=")).root
        *names, target = words
        place = stage.root / (target if target[0] == "/" else f"{stage.folder}/{target}").lstrip("/")
        for name in names:
            path = source / name.lstrip("/")
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so") if source == REPOSITORY else None
                shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                into = place / path.name if target.endswith("/") else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)
