"""What is generated is current, and the two charts speak one language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import chart_readme
from deploy.generated import APPLICATION, LIBRARY, ROOT, generated
from sidecar import __version__
from sidecar.errors import CommandFailed
from tests.deploy.charts import EXAMPLE

# In a pod of another application the port is another one, and what the pod has is not the sidecar's.
DIFFERENT = {"http.port"}


@pytest.mark.parametrize("path", generated(), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generated()[path], "run `python -m deploy`"


def leaves(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return the values by their path; lists and empty maps count as one."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found.update(leaves(value, f"{above}{key}."))
        else:
            found[f"{above}{key}"] = value
    return found


def test_the_library_has_the_defaults_of_the_application() -> None:
    application, library = (
        leaves(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))) for chart in (APPLICATION, LIBRARY)
    )
    shared = application.keys() & library.keys()
    assert {"image.repository", "kafka.sasl.mechanism", "resources.limits.memory", "extraEnv"} <= shared
    assert {key for key in shared if application[key] != library[key]} == DIFFERENT
    assert library.keys() - shared == {"state.sizeLimit"}


def test_all_charts_are_of_the_version_of_the_program() -> None:
    for chart in (APPLICATION, LIBRARY, EXAMPLE):
        said = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
        assert {said["version"], said["appVersion"]} == {__version__}
        assert {each["version"] for each in said.get("dependencies", [])} <= {__version__}
    assert f'"retry-sidecar.version" -}}}}{__version__}{{{{- end' in (
        LIBRARY / "templates" / "_container.tpl"
    ).read_text(encoding="utf-8")


def test_every_object_of_the_schemas_is_closed_or_kubernetes_own() -> None:
    for chart in (APPLICATION, LIBRARY):
        schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
        values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
        assert schema["additionalProperties"] is False
        assert values.keys() <= schema["properties"].keys()
        # `global` is for all charts of a release.
        described = {name for name, each in schema["properties"].items() if each.get("properties")} - {"global"}
        assert all(schema["properties"][name]["additionalProperties"] is False for name in described)


def test_a_value_without_a_comment_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("# -- How many.\ncount: 1\nname: x\n", encoding="utf-8")
    with pytest.raises(CommandFailed, match=r"values\.yaml:3: name is not explained"):
        list(chart_readme.values(path))


def test_rows_have_the_default_and_the_whole_comment(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(
        "# -- How many,\n# at most.\ncount: 1\nprobe:\n  # -- Off | on.\n  # @default -- see there\n  on: [a]\n",
        encoding="utf-8",
    )
    assert list(chart_readme.values(path)) == [
        ("count", "`1`", "How many, at most."),
        ("probe.on", "see there", r"Off \| on."),
    ]
