"""A program: asks an executor of another process where it has this package from, and prints that.

It is a process of its own, because a JVM stays for as long as the process that has started it.
"""

from __future__ import annotations

import json

from sidecar.spark.session import open_session


def _here(_: int) -> tuple[str, str]:
    import sidecar
    from sidecar.engine import hot

    return sidecar.__file__, hot.KIND


def main() -> None:
    conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    session = open_session("packed", "local-cluster[1,1,512]", conf, 1)
    found = session.sparkContext.parallelize([0], 1).map(_here).collect()[0]
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
