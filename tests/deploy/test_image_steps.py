"""The image without a container engine: its steps are carried out in a chroot, and its program is started there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import __version__
from tests.deploy.image_steps import Image, Stage
from tests.deploy.test_image import last, words

USER = "10001:10001"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    debootstrap = shutil.which("debootstrap")
    if debootstrap is None or os.geteuid() != 0:
        pytest.skip("needs root, and debootstrap in the PATH: apt-get install debootstrap")
    folder = tmp_path_factory.mktemp("image")
    yield Image(folder, Path(debootstrap)).stage("sidecar")
    shutil.rmtree(folder)


@pytest.mark.timeout(3_600)
def test_the_program_of_the_image_is_compiled_and_of_this_version(image: Stage) -> None:
    start = words(last("sidecar", "ENTRYPOINT"))
    done = image.run([*start, "version", "--json"], USER)
    assert done.returncode == 0, done.stderr
    versions = json.loads(done.stdout)
    assert versions["retry-sidecar"] == __version__
    assert versions["hot-path"] == "compiled"


def test_the_defaults_of_the_image_hold_and_its_user_may_write_the_volume(image: Stage) -> None:
    done = image.run([*words(last("sidecar", "ENTRYPOINT")), "run", "--show-settings", "--json"], USER)
    assert done.returncode == 0, done.stderr
    shown = {each["name"]: each["value"] for each in json.loads(done.stdout)["settings"]}
    assert (shown["HTTP_HOST"], shown["STATE_DIR"]) == ("0.0.0.0", "/var/lib/retry-sidecar")
    assert image.run(["touch", "/var/lib/retry-sidecar/file"], USER).returncode == 0
    assert image.run(["touch", "/usr/file"], USER).returncode != 0


def test_the_probe_of_the_image_says_that_no_sidecar_answers(image: Stage) -> None:
    done = image.run(words(last("sidecar", "HEALTHCHECK").partition("CMD")[2]), USER)
    assert done.returncode == 1
    assert "no sidecar answers" in done.stderr


def test_the_image_lists_its_contents(image: Stage) -> None:
    listed = json.loads((image.root / "usr/share/sbom/retry-sidecar.cdx.json").read_text(encoding="utf-8"))
    names = {each["name"] for each in listed["components"]}
    assert {"confluent-kafka", "rocksdict", "uvicorn", "httpx"} <= names
    assert not {"pip", "cython", "pytest"} & names


def test_the_image_has_neither_compiler_nor_pip(image: Stage) -> None:
    for program in ("gcc", "pip", "pip3"):
        assert image.run(["sh", "-c", f"command -v {program}"]).returncode != 0
