"""The site is built strictly, from nothing but this repository, and asks its readers to load nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.__main__ import MADE
from tests.docs.pages import DOCS, ROOT

LOADING = re.compile(r"<(?:script|img|iframe|source|embed|object)\b[^>]*?\s(?:src|data)=\"([^\"]+)\"|<link\b[^>]*>")
FOREIGN = re.compile(r"""(?:href=|url\(|@import\s)["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a link or an anchor that leads nowhere fails the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_links_and_anchors_lead_somewhere_and_every_page_is_found(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert {Path("adr/index.html") if page == Path("adr/README.html") else page for page in pages} <= built


def test_every_block_is_shown_as_one(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "```" not in re.sub(r"<code>.*?</code>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), page


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Links to other places are no loading. The theme would load a library for diagrams: there are none."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for loading in LOADING.finditer(text):
            assert not re.search(r"""["'(](?:https?:)?//""", loading[0].replace("http://www.w3.org", "")), loading[0]
        assert 'class="mermaid"' not in text, page
    for sheet in site.rglob("*.css"):
        assert not FOREIGN.search(sheet.read_text(encoding="utf-8")), sheet


def test_the_site_names_no_repository_that_the_theme_would_ask() -> None:
    assert "repo_url" not in yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_a_version_of_the_site_is_pushed_beside_the_others(tmp_path: Path) -> None:
    remote, clone = tmp_path / "remote.git", tmp_path / "clone"

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    git("init", "--quiet", "--bare", str(remote))
    git("clone", "--quiet", f"file://{ROOT}", str(clone), "--depth", "1")
    git("-C", str(clone), "remote", "set-url", "origin", str(remote))
    (clone / ".venv").symlink_to(Path(sys.prefix))
    pushed = subprocess.run(
        ["make", "--assume-old", ".venv/.test-installed", "push-docs"],
        cwd=clone,
        env={**os.environ, "GIT_COMMITTER_NAME": "tests", "GIT_COMMITTER_EMAIL": "tests@example.com"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    assert 'href="latest/"' in git("-C", str(remote), "show", "gh-pages:index.html")
    (version,) = json.loads(git("-C", str(remote), "show", "gh-pages:versions.json"))
    assert version["aliases"] == ["latest"]
    assert "index.html" in git("-C", str(remote), "ls-tree", "--name-only", f"gh-pages:{version['version']}")


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_from_code_is_what_the_code_makes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path](), "run: python -m tests.docs"
