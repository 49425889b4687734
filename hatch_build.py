"""Compiles the hot path when the package is built, where there is a C compiler; without one the package is pure Python.

`SIDECAR_HOT=require` fails without a compiler, `SIDECAR_HOT=skip` compiles nothing.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HOT = Path("sidecar", "engine", "hot")


class HotPath(BuildHookInterface):  # type: ignore[type-arg]  # of a builder configuration that is not looked at
    """Puts an extension module beside each `.pyx` file, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile. An editable install finds the modules in the source folder."""
        if self.target_name != "wheel" or (wanted := os.environ.get("SIDECAR_HOT", "")) == "skip":
            return
        try:
            modules = list(self._compile())
        except Exception as error:
            if wanted == "require":
                raise
            self.app.display_warning(f"the hot path is not compiled, everything works without it: {error}")
            return
        build_data["artifacts"] += [f"/{module.as_posix()}" for module in modules]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _compile(self) -> list[Path]:
        # They are there when the package is built, and not when this file is only read.
        from Cython.Build import cythonize  # noqa: PLC0415
        from setuptools import Distribution, Extension  # noqa: PLC0415
        from setuptools.command.build_ext import build_ext  # noqa: PLC0415

        sources = sorted(path.relative_to(self.root) for path in (Path(self.root) / HOT).glob("*.pyx"))
        flags = os.environ.get("SIDECAR_HOT_FLAGS", "-O3 -g0").split()
        with TemporaryDirectory() as scratch:
            extensions = cythonize(
                [
                    Extension(
                        ".".join(each.with_suffix("").parts),
                        [str(each)],
                        extra_compile_args=flags,
                        extra_link_args=flags,
                    )
                    for each in sources
                ],
                build_dir=scratch,
                compiler_directives={"language_level": 3, "boundscheck": False},
                quiet=True,
            )
            command = build_ext(Distribution({"name": "retry-sidecar", "ext_modules": extensions}))
            command.build_lib, command.build_temp = scratch, scratch
            command.ensure_finalized()
            command.run()
            suffix = sysconfig.get_config_var("EXT_SUFFIX")
            built = [each.with_name(each.stem + suffix) for each in sources]
            for each in built:
                # Replaced and not written over: a process may have the old one open.
                shutil.copy(Path(scratch) / each, fresh := Path(self.root) / each.with_suffix(".fresh"))
                fresh.replace(Path(self.root) / each)
        return built
