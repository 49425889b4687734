"""Write the golden files that are missing."""

from __future__ import annotations

from tests.golden import history
from tests.golden.examples import EXAMPLES


def main() -> None:
    for example in EXAMPLES:
        if not example.path.exists():
            example.path.write_text(example.as_text(), encoding="ascii")
            print(f"wrote {example.path.name}")
    if not history.CHANGELOG.exists():
        history.write()
        print(f"wrote {history.CHANGELOG.name}, {history.PENDING.name}, {history.STATE_FOLDER.name}")


if __name__ == "__main__":
    main()
