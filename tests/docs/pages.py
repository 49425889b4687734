"""The pages of the documentation, and the commands in them.

A fenced block `console` is a dialogue: lines that begin with `$ ` are commands, which the tests run in order; all
others are what they print. A block that cannot run in a test says so where it stands, with the reason:

    ```console not-run="needs a cluster of Kubernetes"

Its commands of `retry-sidecar` are held against the program's options all the same. `exit="1"` is the exit status of
the last command of a block, where it is not 0.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
PAGES: Final = (README, *sorted(DOCS.rglob("*.md")))

_FENCE: Final = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_MARK: Final = re.compile(r'([a-z-]+)="([^"]*)"')
_INLINE: Final = re.compile(r"`(?:\.venv/bin/)?(retry-sidecar [^`]+)`")
_INDENTED: Final = re.compile(r"^ {4}\$ (retry-sidecar .+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    language: str
    marks: Mapping[str, str]
    text: str

    @property
    def commands(self) -> tuple[str, ...]:
        """What follows `$ `, continued lines as one."""
        whole = re.sub(r"\\\n\s*", "", self.text)
        return tuple(re.findall(r"^\$ (.*)$", whole, re.MULTILINE))

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    source = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(source):
        info = match["info"].strip()
        language = info.partition(" ")[0]
        line = source.count("\n", 0, match.start()) + 1
        yield Block(page, line, language, dict(_MARK.findall(info)), textwrap.dedent(match["text"]))


def dialogues(page: Path) -> Iterator[Block]:
    """Yield the blocks that are commands and what they print."""
    return (block for block in blocks(page) if block.language == "console")


def mentions(page: Path) -> Iterator[str]:
    """Yield every command line of `retry-sidecar` on a page, wherever it stands, without what a shell adds to it."""
    source = page.read_text(encoding="utf-8")
    for block in blocks(page):
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
            command = line.removeprefix("$ ").removeprefix(".venv/bin/")
            if command.startswith("retry-sidecar "):
                yield _bare(command)
    yield from map(_bare, _INLINE.findall(_FENCE.sub("", source)))
    yield from map(_bare, _INDENTED.findall(source))


def _bare(command: str) -> str:
    """Return the command without comment, redirections and what it is piped into."""
    return re.split(r"\s[#|><&]", command, maxsplit=1)[0].strip()
