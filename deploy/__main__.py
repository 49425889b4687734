"""`python -m deploy` writes the generated files."""

from __future__ import annotations

from deploy.generated import ROOT, generated

if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
