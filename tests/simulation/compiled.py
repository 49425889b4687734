"""Deliberate mistakes in the compiled hot path: a module is compiled again with one line changed, in another folder.

Like `Mutation`, one of a line that is no longer there fails loudly.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final, NamedTuple
from unittest.mock import patch

from sidecar.engine import hot

HOT: Final = Path(hot.__file__).parent
_COMPILE: Final = """
import sys
from Cython.Build import cythonize
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

name = sys.argv[1]
extensions = cythonize(
    [Extension("sidecar.engine.hot." + name, [f"sidecar/engine/hot/{name}.pyx"], extra_compile_args=["-O0", "-w"])],
    compiler_directives={"language_level": 3, "boundscheck": False},
    quiet=True,
)
command = build_ext(Distribution({"name": "mistake", "ext_modules": extensions}))
command.build_lib = command.build_temp = "."
command.ensure_finalized()
command.run()
"""


class CompiledMutation(NamedTuple):
    """A change: in `module`.pyx the text `old` becomes `new`."""

    name: str
    module: str
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the mutation for the length of the block."""
        source = (HOT / f"{self.module}.pyx").read_text()
        assert source.count(self.old) == 1, f"{self.module}.pyx has {self.old!r} not once: change {self.name!r} with it"
        with (
            TemporaryDirectory(prefix="mistake-") as folder,
            patch.object(hot, self.module, _compiled(self.module, source.replace(self.old, self.new), Path(folder))),
        ):
            yield


def _compiled(module: str, source: str, folder: Path) -> ModuleType:
    """Return a module of this source; the right one stays what `import` gives."""
    package = folder / "sidecar" / "engine" / "hot"
    package.mkdir(parents=True)
    for each in (package, *package.parents[:2]):
        (each / "__init__.py").touch()
    (package / "wire.pxd").write_text((HOT / "wire.pxd").read_text())
    (package / f"{module}.pyx").write_text(source)
    subprocess.run([sys.executable, "-c", _COMPILE, module], cwd=folder, check=True, capture_output=True)
    name = f"sidecar.engine.hot.{module}"
    built = package / f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}"
    spec = importlib.util.spec_from_file_location(name, built)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
