# SPDX-License-Identifier: Apache-2.0
"""Writes the type stubs of optim, init, admission and eviction, whose functions come from the C++ libraries.

    python -m tandem._stubs python/tandem
"""

from __future__ import annotations

import os
import sys

from tandem._kinds import class_name, short
from tandem._load import load_core

GROUPS = {"optim": "optimizer", "init": "initializer", "admission": "admission", "eviction": "eviction"}


def stub_of(group: str) -> str:
    """Returns the text of a module's stub."""
    described = sorted(load_core().describe_kinds(group), key=lambda kind: class_name(kind["name"]))
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Written by python -m tandem._stubs; do not edit.", "", "from tandem._kinds import Kind", ""]
    for kind in described:
        # Parameters without a default value come first.
        fields = sorted(kind["fields"], key=lambda field: not field["required"])
        parameters = []
        for field in fields:
            parameters.append(f"{field['name']}: float" + ("" if field["required"] else f" = {short(field['default'])!r}"))
        lines.append(f"def {class_name(kind['name'])}({', '.join(parameters)}) -> Kind: ...")
    names = ", ".join(f'"{class_name(kind["name"])}"' for kind in described)
    return "\n".join([*lines, "", f"__all__ = [{names}]", ""])


if __name__ == "__main__":
    for module, group in GROUPS.items():
        with open(os.path.join(sys.argv[1], f"{module}.pyi"), "w", encoding="utf-8") as file:
            file.write(stub_of(group))
