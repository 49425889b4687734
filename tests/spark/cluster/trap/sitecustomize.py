"""Python runs this when it starts; in an executor of the tests it sets the trap."""

from __future__ import annotations

import os

if os.environ.get("SIDECAR_TEST_TRAP"):
    from tests.spark.cluster.trap import springs

    springs.install()
