"""The table of values in a chart's README.md, made from the comments of its values.yaml.

The form of the comments is helm-docs': `# -- text` above a key, and where a default is long `# @default -- text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from sidecar.errors import CommandFailed

_BEGIN: Final = "<!-- values: written by `python -m deploy` -->"
_END: Final = "<!-- end of values -->"
_DESCRIPTION: Final = "# -- "
_DEFAULT: Final = "# @default -- "


class Value(NamedTuple):
    """A row of the table."""

    key: str
    default: str
    meaning: str


def renewed(chart: Path) -> str:
    """Return the chart's README.md with its table as values.yaml has it.

    Raises:
        CommandFailed: A value is not explained, or the README has no place for the table.
    """
    text = (chart / "README.md").read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)
    if not pattern.search(text):
        raise CommandFailed(f"{chart / 'README.md'} has no place for its values: write {_BEGIN} and {_END} into it")
    rows = "\n".join(f"| `{row.key}` | {row.default} | {row.meaning} |" for row in values(chart / "values.yaml"))
    table = f"{_BEGIN}\n| value | default | meaning |\n|---|---|---|\n{rows}\n{_END}"
    return pattern.sub(lambda _: table, text)


def values(path: Path) -> Iterator[Value]:
    """Yield each value that has a comment.

    Raises:
        CommandFailed: A value has none, and nothing above it has.
    """
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from _of(root, "", text.splitlines(), path)


def _of(mapping: yaml.MappingNode, above: str, lines: Sequence[str], path: Path) -> Iterator[Value]:
    for key_node, node in mapping.value:
        key = f"{above}{key_node.value}"
        meaning, default = _comment(lines, key_node.start_mark.line)
        if meaning:
            yield Value(key, default or _shown(node), meaning.replace("|", r"\|"))
        elif isinstance(node, yaml.MappingNode) and node.value:
            yield from _of(node, f"{key}.", lines, path)
        else:
            raise CommandFailed(
                f"{path}:{key_node.start_mark.line + 1}: {key} is not explained: write `# -- ` above it"
            )


def _comment(lines: Sequence[str], line: int) -> tuple[str, str]:
    """Return description and default from the comment directly above a line; empty where it has none."""
    begin = line
    while begin > 0 and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    meaning: list[str] = []
    default = ""
    for text in map(str.strip, lines[begin:line]):
        if text.startswith(_DEFAULT):
            default = text.removeprefix(_DEFAULT)
        elif text.startswith(_DESCRIPTION):
            meaning = [text.removeprefix(_DESCRIPTION)]
        elif meaning:
            meaning.append(text.removeprefix("#").strip())
    return " ".join(meaning), default


def _shown(node: yaml.Node) -> str:
    return f"`{json.dumps(yaml.safe_load(yaml.serialize(node)))}`"
