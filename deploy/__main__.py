"""`python -m deploy` writes the generated files; those that are made from the chart only if Helm is here."""

from __future__ import annotations

import sys

from deploy import manifests
from deploy.generated import ROOT, generated

if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    if (helm := manifests.find_helm()) is None:
        print("Helm is not here, and kubernetes/ stays as it is: `make helm` gets it", file=sys.stderr)
    else:
        # After the schema, which Helm reads.
        for path, text in manifests.texts(helm).items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
