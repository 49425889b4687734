"""The process from which Spark forks its Python workers: it imports what they need once, and they share its memory.

PySpark's own daemon imports nothing, because some packages start threads, which a fork does not copy. The environment
keeps these packages from starting any.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import Final

from pyspark.daemon import manager

WITHOUT_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The environment in which numpy and pyarrow start no threads when they are imported."""
_MODULES: Final = (
    "pandas",
    "pyspark.worker",
    "sidecar.spark.source.stream",
    "sidecar.spark.stream.processor",
    "sidecar.spark.stream.sink",
)


def preload() -> None:
    """Import what the workers need, and keep their garbage collectors from copying it."""
    os.environ.update(WITHOUT_THREADS)
    for name in _MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload()
    manager()
