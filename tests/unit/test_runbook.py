"""The runbook has a section for each alert, and the words of each reason that the code can give for not being ready."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli import COMMANDS
from sidecar.metrics import DECLARED, PREFIX

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs" / "how-to/runbook.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", RUNBOOK, re.MULTILINE))
ALERTS = (
    *("RetrySidecarDown", "RetrySidecarNotReady", "RetrySidecarLatenessHigh", "RetrySidecarBacklogGrowing"),
    *(
        "RetrySidecarRestoreTooLong",
        "RetrySidecarRestoreFailed",
        "RetrySidecarInputLost",
        "RetrySidecarDeadLetters",
        "RetrySidecarInputLagging",
        "RetrySidecarDlqLarge",
        "RetrySidecarReloadRejected",
        "RetrySidecarDeadLettersRising",
        "RetrySidecarNotificationsFailing",
    ),
    *("RetrySidecarPartitionWithoutOwner", "RetrySidecarStateDiskFilling", "RetrySidecarFencedRepeatedly"),
    "RetrySidecarOpenFiles",
    *("RetrySidecarLastStableOffsetStuck", "RetrySidecarClockSkew", "RetrySidecarOriginClosed"),
    "RetrySidecarTransactionsAborting",
)
PARTS = ("Meaning", "Impact", "Diagnosis", "Fix", "Escalate")

SAYING = {"blocker", "unread", "health", "reasons", "_say_held"}
"""Functions whose texts are reasons."""
KEEPING = {"reason", "_reasons", "_error"}
"""Attributes that keep a reason until it is asked for."""
TAKING = {"back_off", "not_grown", "_close_dlq"}
"""Functions that are given one."""


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in an expression, with `…` for what is filled in; those that are parts of another only there."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def reasons() -> Iterator[str]:
    """Yield what the code can say of why it is not ready: texts of several words."""
    package = ROOT / "sidecar"
    for path in (
        *(package / "runtime").rglob("*.py"),
        *(package / "serving").glob("*.py"),
        package / "kafka/clock_guard.py",
        package / "kafka/tokens.py",
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            found: list[ast.AST] = []
            if isinstance(node, ast.FunctionDef) and node.name in SAYING:
                found = list(node.body[1:] if ast.get_docstring(node) else node.body)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                kept = any(isinstance(target, ast.Attribute) and target.attr in KEEPING for target in targets)
                found = [node.value] if kept and node.value is not None else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKING:
                found = list(node.args)
            for each in found:
                yield from (text.strip(" ;:") for text in texts(each) if len(text.split()) > 2)


REASONS = sorted(set(reasons()))


def test_reasons_are_found_wherever_they_are_given() -> None:
    for words in (
        "starting",
        "clock",
        "STATE_DIR",
        "broker answers",
        "consumer group",
        "DLQ",
        "status topic",
        "come round",
    ):
        assert any(words in reason for reason in REASONS), words


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_stands_in_the_runbook_word_for_word(reason: str) -> None:
    assert f"`{reason}`" in RUNBOOK


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_section_with_expression_meaning_and_what_to_do(alert: str) -> None:
    section = SECTIONS[alert]
    assert re.search(r"^Expression: `.+`, for \d+[mh], (warning|critical)$", section, re.MULTILINE)
    for part in PARTS:
        assert re.search(rf"^\*\*{part}\.\*\* \S", section, re.MULTILINE), part


def test_expressions_use_metrics_and_labels_that_exist() -> None:
    expressions = re.findall(r"^Expression: `(.+)`,", RUNBOOK, re.MULTILINE)
    assert len(expressions) == len(ALERTS)
    for expression in expressions:
        for name in re.findall(rf"{PREFIX}(\w+)", expression):
            bare = re.sub(r"_(bucket|sum|count)$", "", name)
            assert bare in DECLARED, name
            for label in re.findall(rf"{PREFIX}{name}{{(\w+)[=!]", expression):
                assert label in DECLARED[bare].labels


def test_commands_of_the_runbook_exist() -> None:
    used = set(re.findall(r"`retry-sidecar ([a-z]+)", RUNBOOK))
    assert used
    assert used <= COMMANDS.keys()


def test_every_other_heading_is_of_reasons() -> None:
    others = SECTIONS.keys() - set(ALERTS)
    assert all(re.search(r"^`.+`$", SECTIONS[heading], re.MULTILINE) for heading in others)
