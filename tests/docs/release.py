"""`make check-release`: a tag is published only by the repository and under the version that the metadata names."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT / "pyproject.toml", ROOT / "clients" / "python" / "pyproject.toml")


def project(path: Path) -> dict[str, Any]:
    """Return the metadata of a distribution."""
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return found


def problems(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what stands against a release in this environment, which is that of a GitHub workflow."""
    repository = f"{environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{environ.get('GITHUB_REPOSITORY', '')}"
    tag = environ.get("GITHUB_REF_NAME", "")
    for path in PROJECTS:
        found = project(path)
        where = path.relative_to(ROOT)
        if (source := found["urls"]["Source"]) != repository:
            yield f"{where}: [project.urls] names {source}, and this is {repository}: set the URLs to this repository"
        if tag != (wanted := f"v{found['version']}"):
            yield f"{where}: version {found['version']} is released by the tag {wanted}, and this is {tag or 'no tag'}"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"\n## [{tag.removeprefix('v')}] - " not in changelog:
        yield f"CHANGELOG.md: there is no heading `## [{tag.removeprefix('v')}] - <date>`"


if __name__ == "__main__":
    sys.exit("\n".join(problems(os.environ)) or 0)
