"""Prints the test modules of this folder that cannot be imported where PySpark and its libraries are missing."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

LIBRARIES = ("pandas", "py4j", "pyarrow", "pyspark")

if __name__ == "__main__":
    # The entry None in this table is Python's way to say that there is no such module.
    sys.modules.update(dict.fromkeys(LIBRARIES, None))  # type: ignore[arg-type]
    for module in sorted(Path(__file__).parent.rglob("test_*.py")):
        name = ".".join(module.relative_to(Path(__file__).parents[2]).with_suffix("").parts)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if str(missing.name).split(".")[0] not in LIBRARIES:
                raise
            print(module.name)
