# SPDX-License-Identifier: Apache-2.0
"""Makes functions such as tandem.optim.Adagrad from the descriptions of the C++ libraries."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable

from tandem._load import load_core

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
        fields = ", ".join(f"{k}={v!r}" for k, v in self.message.items() if k != "kind")
        return f"{class_name(self.name)}({fields})"


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
