"""The client's own copy of the contract is the sidecar's, and its former name still works."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import retry_sidecar
from retry_sidecar import headers

from sidecar.contract.control import Outcome
from sidecar.contract.dead_letter import REDRIVES
from sidecar.contract.dialects import native
from sidecar.contract.dialects.registry import DEFAULT, DIALECTS
from tests.docs.pages import DOCS, README, ROOT, blocks


def test_the_header_names_are_the_sidecars() -> None:
    names = {name: value for name, value in vars(headers).items() if isinstance(value, str) and name.isupper()}
    assert {name: getattr(native, name) for name in names.keys() - {"REDRIVES"}} | {"REDRIVES": REDRIVES} == names
    assert native.NAMES | {REDRIVES} == headers.HISTORY


def test_the_client_understands_the_dialects_that_a_sidecar_accepts_by_default() -> None:
    assert set(DEFAULT) == {"native", "ibm"}
    ibm = DIALECTS["ibm"]
    assert (ibm.origin_header, ibm.attempt_header, ibm.names) == headers.IBM


def test_the_outcomes_of_changes_of_messages_are_the_sidecars() -> None:
    assert {each.value for each in retry_sidecar.Outcome} == {each.value for each in Outcome} - {
        "paused",
        "resumed",
        "stopped",
    }


@pytest.mark.parametrize("page", [README, DOCS / "how-to/clients.md", ROOT / "clients/python/README.md"], ids=str)
def test_what_the_pages_import_from_the_client_is_there(page: Path) -> None:
    code = [ast.parse(block.text) for block in blocks(page) if block.language == "python"]
    imports = [node for tree in code for node in tree.body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module and node.module.startswith("retry_sidecar")]
    assert ours
    for node in ours:
        if node.module == "retry_sidecar.aiokafka":
            pytest.importorskip("aiokafka")
        module = importlib.import_module(str(node.module))
        assert all(hasattr(module, name.name) for name in node.names), node.module
