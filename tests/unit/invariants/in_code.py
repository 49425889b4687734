"""The invariants of the program, as its source has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def invariants() -> Iterator[tuple[str, str]]:
    """Yield module and text of each `invariant(…)` in the program."""
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "invariant":
                text = node.args[1]
                assert isinstance(text, ast.Constant), f"{path}: the text of an invariant is a literal"
                assert isinstance(text.value, str)
                yield str(path.relative_to(ROOT)), text.value
