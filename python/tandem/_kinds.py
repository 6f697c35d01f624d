# SPDX-License-Identifier: Apache-2.0
"""Makes functions such as tandem.optim.Adagrad from the descriptions of the C++ libraries."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable

import numpy as np

from tandem._load import load_core

_MODULES = {"optimizer": "optim", "initializer": "init", "admission": "admission", "eviction": "eviction"}

# Names that Python uses for fields of the C++ descriptions.
_CLASS_NAMES = {
    "sgd": "SGD",
    "rowwise_adagrad": "RowwiseAdagrad",
    "adamw": "AdamW",
    "amsgrad": "AMSGrad",
    "ftrl": "FTRL",
    "lru": "LRU",
    "lfu": "LFU",
    "l2_norm": "L2Norm",
    "ttl": "TTL",
    "none": "Never",  # None is a word of the language
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A configured optimizer, initializer, admission or eviction. `message` has the fields of the wire message."""

    group: str
    name: str
    message: dict[str, Any]

    def __repr__(self) -> str:
        # An expression that makes it again, without the arguments that have their default values.
        described = next(kind for kind in load_core().describe_kinds(self.group) if kind["name"] == self.name)
        arguments = [
            f"{field['name']}={short(self.message[field['message_name']])!r}"
            for field in described["fields"]
            if field["message_name"] in self.message and (field["required"] or self.message[field["message_name"]] != field["default"])
        ]
        return f"tandem.{_MODULES[self.group]}.{class_name(self.name)}({', '.join(arguments)})"


def short(value: Any) -> Any:
    """Returns the shortest number that is the same as float32: 0.1, of which C++ tells 0.10000000149011612."""
    if not isinstance(value, float):
        return value
    return float(str(np.float32(value))) if np.isfinite(np.float32(value)) else value


def class_name(kind: str) -> str:
    return _CLASS_NAMES.get(kind) or "".join(part.capitalize() for part in kind.split("_"))


def _make(group: str, described: dict[str, Any]) -> Callable[..., Kind]:
    fields = {field["name"]: field for field in described["fields"]}

    parameters = []
    for name, field in fields.items():
        default = inspect.Parameter.empty if field["required"] else field["default"]
        parameters.append((name, default))
    # Parameters without a default value come first.
    parameters.sort(key=lambda p: p[1] is not inspect.Parameter.empty)
    signature = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in parameters],
        return_annotation=Kind,
    )

    def make(*args: Any, **kwargs: Any) -> Kind:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{class_name(described['name'])}{signature}: {error}") from None
        bound.apply_defaults()
        message: dict[str, Any] = {"kind": described["name"]}
        for name, value in bound.arguments.items():
            message[fields[name]["message_name"]] = value
        return Kind(group, described["name"], message)

    lines = [described["summary"]]
    if described["reference"]:
        lines.append(described["reference"])
    lines += [f"{f['name']}: {f['help']} A number {f['range']}.".replace(" .", ".") for f in fields.values()]
    make.__name__ = make.__qualname__ = class_name(described["name"])
    make.__doc__ = "\n\n".join(lines)
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make


def make_functions(group: str) -> dict[str, Callable[..., Kind]]:
    """Returns {class name: function} of all kinds of a group."""
    return {class_name(d["name"]): _make(group, d) for d in load_core().describe_kinds(group)}
