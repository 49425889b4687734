"""Small random mistakes in the core: `make mutate SAMPLE=150` tells which of them no quick test notices.

Each mutant is one place changed by an operator of Cosmic Ray. A clean run notes which tests run which line; a mutant is
shown to the tests that run its line, the quickest first, until one fails. Time is that of the processor, so the load of
the machine decides nothing. With the list of an earlier run as `--before`, a mutant that fell then must fall now.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = ("engine", "changelog", "wheel", "policy", "contract")
TESTS: Final = (*(f"tests/unit/{place}" for place in PLACES), "tests/property")
NOT_USED: Final = ["NoOp", "_Is_Eq", "_IsNot_NotEq", "VariableInserter", "VariableReplacer", "RemoveDecorator"]
"""Three change nothing, two need a name, and what lacks its decorator fails at the import."""
QUIET: Final = ("-q", "-n0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=600", "--no-header")


class Mutant(NamedTuple):
    name: str
    path: str
    line: int
    source: str


class Chosen(NamedTuple):
    """The plugin that runs chosen tests, the quickest first."""

    seconds: Mapping[str, float]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [each for each in items if each.nodeid in self.seconds]
        items[:] = sorted(chosen, key=lambda item: self.seconds[item.nodeid])


class Noted(coverage.Coverage):  # type: ignore[misc]  # the library is not there in every environment
    """The plugin that notes which lines each test runs, and its seconds."""

    seconds: Final[dict[str, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.switch_context(item.nodeid)
        start_s = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - start_s
        return result


class Finder(importlib.machinery.SourceFileLoader):
    """Finds and loads the mutant's module before everything else does."""

    def __init__(self, mutant: Mutant) -> None:
        name = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        super().__init__(name, str(ROOT / mutant.path))
        self.source = mutant.source

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")


def meaning(source: str) -> str:
    """Return what the program does, without annotations, which nothing evaluates; nothing for what is no program."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if isinstance(getattr(node, field, None), ast.expr):
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


def mutants(path: Path) -> Iterator[tuple[str, Callable[[], Mutant | None]]]:
    """Yield each mutant of a file: the words that choose the sample, and what makes it, if it means something else."""
    source = path.read_text(encoding="utf-8")
    place, lines, nodes = str(path.relative_to(ROOT)), source.splitlines(), list(ast_nodes(get_ast(source)))

    def made(operator: Any, occurrence: int, line: int, name: str) -> Mutant | None:
        changed = mutate_code(source, operator, occurrence) or source
        if meaning(changed) in ("", meaning(source)):
            return None
        new = "; ".join(each.strip() for each in changed.splitlines() if each not in lines)
        return Mutant(f"{name} => {new}", place, line, changed)

    for kind in sorted(operator_names()):
        if kind.endswith(tuple(NOT_USED)):
            continue
        operator, seen = get_operator(kind)(), Counter[str]()
        for occurrence, (start, _) in enumerate(at for node in nodes for at in operator.mutation_positions(node)):
            text = lines[start[0] - 1].strip()
            seen[text] += 1
            name = f"{place} {kind.rpartition('/')[2]} {seen[text]}: {text}"
            yield name, partial(made, operator, occurrence, start[0], name)


def sample(size: int, seed: int) -> list[Mutant]:
    """Choose mutants by a hash of their names, so that code elsewhere changes nothing about the choice; one a line."""
    files = [file for place in PLACES for file in (ROOT / "sidecar" / place).rglob("*.py") if "hot" not in file.parts]
    every = [each for file in files for each in mutants(file)]
    every.sort(key=lambda each: hashlib.sha256(f"{seed} {each[0]}".encode()).digest())
    found: dict[tuple[str, int], Mutant] = {}
    for mutant in (make() for _, make in every):
        if mutant is not None:
            found.setdefault((mutant.path, mutant.line), mutant)
        if len(found) == size:
            break
    return [*found.values()]


def forked(do: Callable[[], int], seconds: int | None = None) -> int:
    """Run something in a process of its own, with a bound on its processor time; negative is the signal."""
    if (child := os.fork()) == 0:
        if seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(do())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def clean_run(notes: Path) -> int:
    """Run all without a mutant, and note each test's seconds and lines."""
    noted = Noted(data_file=None, source=[str(ROOT / "sidecar" / place) for place in PLACES])
    with noted.collect():
        status = pytest.main([*QUIET, *TESTS], plugins=[noted])
    data = noted.get_data()
    lines = {str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file) for file in data.measured_files()}
    notes.write_text(json.dumps({"seconds": noted.seconds, "lines": lines}), encoding="utf-8")
    return int(status)


def verdict(mutant: Mutant, clean: Any) -> str:
    """Return whether a test notices the mutant, with the notes of the clean run."""
    seconds, contexts = clean["seconds"], clean["lines"].get(mutant.path, {})
    of_line = contexts.get(str(mutant.line), [])
    # A line that runs at the import belongs to every test of its file.
    seen = of_line if any(of_line) else {test for tests in contexts.values() for test in tests}
    chosen = {test: seconds[test] for test in seen if test in seconds}
    if not chosen:
        return "survived: no test runs it"

    def run() -> int:
        sys.meta_path.insert(0, Finder(mutant))
        files = sorted({test.partition("::")[0] for test in chosen})
        return int(pytest.main([*QUIET, "-x", *files], plugins=[Chosen(chosen)]))

    # Ten times the processor time of the same tests without a mutant, and the time of their imports.
    status = forked(run, 30 + int(10 * sum(chosen.values())))
    return "survived" if status == 0 else "killed"


def main() -> int:
    """Run a sample of mutants, write the verdicts, and compare them with earlier ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=150, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--out", type=Path, required=True, help="where the list goes")
    parser.add_argument("--before", type=Path, help="an earlier list: fails when a mutant survives that fell in it")
    options = parser.parse_args()
    os.environ["SIDECAR_PURE_PYTHON"] = "1"
    notes = options.out.with_suffix(".clean")
    if status := forked(lambda: clean_run(notes)):
        return status
    clean = json.loads(notes.read_text(encoding="utf-8"))
    for module in ["confluent_kafka", "msgspec", "pydantic", "rocksdict", "structlog"]:
        # They take long, and no mutant is in them: read once, before the processes of the mutants fork.
        importlib.import_module(module)
    verdicts: dict[str, str] = {}
    chosen = sample(options.sample, options.seed)
    for none in [each._replace(source=(ROOT / each.path).read_text(encoding="utf-8")) for each in chosen[:3]]:
        assert verdict(none, clean).startswith("survived"), f"its tests fail without the mutant: {none.name}"
    for mutant in chosen:
        verdicts[mutant.name] = verdict(mutant, clean)
        print(f"{verdicts[mutant.name]:<10} {mutant.name}", flush=True)
        options.out.write_text(json.dumps(verdicts, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{sum(each.startswith('killed') for each in verdicts.values())} of {len(verdicts)} mutants fell")
    before = json.loads(options.before.read_text(encoding="utf-8")) if options.before else {}
    lost = [name for name, each in verdicts.items() if each != "killed" and before.get(name) == "killed"]
    print("".join(f"survives, and fell before: {name}\n" for name in lost), end="")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
