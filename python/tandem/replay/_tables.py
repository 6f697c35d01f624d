# SPDX-License-Identifier: Apache-2.0
"""The configuration of replay tables, as C++ has it (replay/table/table_options.h)."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Mapping, Union

import numpy as np

from tandem._load import load_core
from tandem.errors import InvalidArgumentError

_core = load_core()

#: The dtypes of columns, by the names that C++ has for them.
DTYPES: list[str] = _core.replay_dtypes()
_NUMPY: dict[str, np.dtype[Any]] = {
    "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "bf16": np.dtype(np.uint16),  # NumPy has no bfloat16: its bits
}  # fmt: skip
_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in _NUMPY.items() if name != "bf16"}
_NAMES[np.dtype(np.bool_)] = "u8"

SELECTORS: list[str] = _core.replay_selectors()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns NumPy's dtype for values of a column."""
    return _NUMPY[name]


def column_dtype(dtype: np.dtype[Any]) -> str:
    """Returns the name that numpy_dtype() has turned into `dtype`."""
    return "bf16" if dtype == _NUMPY["bf16"] else _NAMES[dtype]


def dtype_name(dtype: Any, what: str) -> str:
    """Returns the name of a dtype that columns can have."""
    if isinstance(dtype, str) and dtype in _NUMPY:
        return dtype
    try:
        name = _NAMES.get(np.dtype(dtype))
    except TypeError:
        name = None
    if name is None:
        known = ", ".join(sorted({str(d) for d in _NAMES}))
        raise InvalidArgumentError(f"{what} has dtype {dtype}; replay tables have {known}: convert it, for example by .astype(np.float32)")
    return name


@dataclasses.dataclass(frozen=True)
class Column:
    """The dtype and shape of one step's value. `dtype` is "f32", np.float32 and the like."""

    dtype: Any
    shape: tuple[int, ...] = ()


#: Columns by name. Values are Column, (dtype, shape), a dtype for a scalar, or such a mapping again: the columns of a nested dict.
Columns = Mapping[str, Any]


def flatten(step: Mapping[str, Any], what: str, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a nested dict by their paths, as in "observation/image"."""
    flat: dict[str, Any] = {}
    for key, value in step.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise InvalidArgumentError(f"{what} has the key {key!r}; keys must be text without '/', which separates the names of nested dicts")
        if isinstance(value, Mapping):
            flat.update(flatten(value, what, f"{prefix}{key}/"))
        else:
            flat[prefix + key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Does the reverse of flatten()."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split("/")
        at: Any = nested
        for part in path:
            at = at.setdefault(part, {}) if isinstance(at, dict) else None
        if isinstance(at, dict) and not isinstance(at.get(leaf), dict):
            at[leaf] = value
        else:  # a writer that is not Python's has columns "a" and "a/b"
            nested[name] = value
    return nested


def parse_columns(columns: Columns, what: str) -> dict[str, Column]:
    """Returns the columns by their paths."""
    parsed: dict[str, Column] = {}
    for name, value in flatten(columns, what).items():
        of = f"column '{name}' of {what}"
        if isinstance(value, Column):
            column = value
        elif isinstance(value, tuple):
            if len(value) != 2 or not isinstance(value[1], (tuple, list)):
                raise InvalidArgumentError(f"{of} is {value!r}; it must be (dtype, shape)")
            column = Column(value[0], tuple(value[1]))
        else:
            column = Column(value)
        if not all(isinstance(d, (int, np.integer)) and d >= 1 for d in column.shape):
            raise InvalidArgumentError(f"{of} has shape {column.shape}; dimensions must be whole numbers of 1 or more")
        parsed[name] = Column(dtype_name(column.dtype, of), tuple(int(d) for d in column.shape))
    return parsed


@dataclasses.dataclass(frozen=True)
class Selector:
    """Chooses items. kind: one of SELECTORS. exponent: of "prioritized"; 0 is uniform."""

    kind: str
    exponent: float = 0.6


@dataclasses.dataclass(frozen=True)
class RateLimit:
    """Couples inserts to samples: min_diff <= inserts * samples_per_insert - samples <= max_diff, and at least min_size items.

    docs/replay.md has the exact rules. None: no such limit.
    """

    samples_per_insert: float = 1.0
    min_diff: float | None = None
    max_diff: float | None = None
    min_size: int = 1

    @classmethod
    def at_least(cls, min_size: int) -> RateLimit:
        """Samples begin at `min_size` items, without further limit: Reverb's MinSize."""
        return cls._from_json(_core.replay_min_size(_count(min_size, "min_size")))

    @classmethod
    def queue(cls, size: int, times: int = 1) -> RateLimit:
        """At most `size` items wait to be sampled, each `times` times."""
        return cls._from_json(_core.replay_queue_limit(_count(size, "size"), _count(times, "times", 32)))

    @classmethod
    def ratio(cls, samples_per_insert: float, min_size: int, slack: float) -> RateLimit:
        """`samples_per_insert` samples for each insert, within `slack` in either direction: Reverb's SampleToInsertRatio."""
        return cls._from_json(_core.replay_ratio(samples_per_insert, _count(min_size, "min_size"), slack))

    @classmethod
    def _from_json(cls, text: str) -> RateLimit:
        return _limit(json.loads(text))


@dataclasses.dataclass(frozen=True)
class Staleness:
    """Bounds the lag of items. docs/replay.md describes the kinds "none", "pace" and "evict", and what the fields mean."""

    kind: str = "none"
    max_lag: int = 1
    batch: int = 1
    every: int = 1
    slow: str = "wait"  # or "take", "drop"
    lease: float = 30.0
    max_rollout: float = 600.0


@dataclasses.dataclass(frozen=True)
class Table:
    """The configuration of a table.

        Table.prioritized("replay", size=100_000, min_size=1000)
        Table("replay", sampler="uniform", max_items=100_000, limit=RateLimit.ratio(8, 1000, 100))

    sampler, remover: which item is sampled, and which one leaves a full table: a name of SELECTORS, or a Selector.
    max_items, max_bytes: budgets; a new item first removes others. max_bytes counts chunks, each once; 0: no limit.
    max_times_sampled: an item leaves after so many samples; 0: never for this reason.
    columns: of items; None: those of the first item that is inserted.
    seed: draw i is a function of (seed, i).
    ttl: an item leaves at this age in seconds; 0: never for this reason.
    """

    name: str
    sampler: Union[Selector, str] = "uniform"
    remover: Union[Selector, str] = "fifo"
    max_items: int = 1_000_000
    max_bytes: int = 0
    max_times_sampled: int = 0
    limit: RateLimit = RateLimit()
    columns: Columns | None = None
    seed: int = 0
    staleness: Staleness = Staleness()
    ttl: float = 0.0

    @classmethod
    def queue(cls, name: str, size: int, times: int = 1, **options: Any) -> Table:
        """Items are sampled in their order, `times` times each; inserts wait while the queue holds `size` items.

        options: other fields, such as columns.
        """
        return _from_json(_core.replay_queue(name, _count(size, "size"), _count(times, "times", 32)), options)

    @classmethod
    def stack(cls, name: str, size: int, **options: Any) -> Table:
        """A queue whose newest item is sampled first."""
        return _from_json(_core.replay_stack(name, _count(size, "size")), options)

    @classmethod
    def paced_queue(cls, name: str, batch: int, max_lag: int, every: int = 1, slow: str = "wait", **options: Any) -> Table:
        """A queue that admits rollouts so that items lag at most `max_lag` commits behind the learner.

        The learner uses `batch` items in an update and commits a version after every `every` updates.
        """
        message = _core.replay_paced_queue(name, _count(batch, "batch", 32), _count(max_lag, "max_lag", 32), _count(every, "every", 32), slow)
        return _from_json(message, options)

    @classmethod
    def uniform(cls, name: str, size: int, min_size: int = 1, **options: Any) -> Table:
        """Uniform samples of the newest `size` items, once there are `min_size`."""
        return _from_json(_core.replay_uniform(name, _count(size, "size"), _count(min_size, "min_size")), options)

    @classmethod
    def prioritized(cls, name: str, size: int, min_size: int = 1, exponent: float = 0.6, **options: Any) -> Table:
        """Prioritized samples of the newest `size` items (Schaul et al., ICLR 2016), once there are `min_size`."""
        return _from_json(_core.replay_prioritized(name, _count(size, "size"), _count(min_size, "min_size"), exponent), options)

    def to_json(self) -> str:
        """Returns the message tandem.v1.ReplayTableOptions."""
        what = f"table '{self.name}'"
        columns = parse_columns(self.columns, what) if self.columns is not None else {}
        return to_json({
            "name": self.name,
            "sampler": _selector_message(self.sampler, f"sampler of {what}"),
            "remover": _selector_message(self.remover, f"remover of {what}"),
            "max_items": self.max_items,
            "max_bytes": self.max_bytes,
            "max_times_sampled": self.max_times_sampled,
            "limit": {name: value for name, value in dataclasses.asdict(self.limit).items() if value is not None},
            "columns": [{"name": n, "dtype": DTYPES.index(c.dtype), "shape": list(c.shape)} for n, c in columns.items()],
            "seed": self.seed,
            "staleness": {
                "kind": _choice(self.staleness.kind, ("none", "pace", "evict"), f"staleness.kind of {what}"),
                "max_lag": self.staleness.max_lag,
                "batch": self.staleness.batch,
                "every": self.staleness.every,
                "slow": _choice(self.staleness.slow, ("wait", "take", "drop"), f"staleness.slow of {what}"),
                "lease_seconds": self.staleness.lease,
                "max_rollout_seconds": self.staleness.max_rollout,
            },
            "ttl_seconds": self.ttl,
        })

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Table:
        """Returns the configuration that a message ReplayTableOptions has, as JSON gives it."""
        columns = {c["name"]: Column(DTYPES[c["dtype"]], tuple(int(d) for d in c["shape"])) for c in message["columns"]}
        return cls(
            name=message["name"],
            sampler=Selector(message["sampler"]["kind"].lower(), float(message["sampler"]["exponent"])),
            remover=Selector(message["remover"]["kind"].lower(), float(message["remover"]["exponent"])),
            max_items=int(message["max_items"]),
            max_bytes=int(message["max_bytes"]),
            max_times_sampled=int(message["max_times_sampled"]),
            limit=_limit(message["limit"]),
            columns=nest(columns) if columns else None,
            seed=int(message["seed"]),
            staleness=_staleness(message["staleness"]) if "staleness" in message else Staleness(),
            ttl=float(message["ttl_seconds"]),
        )  # fmt: skip


def _from_json(text: str, options: Mapping[str, Any]) -> Table:
    return dataclasses.replace(Table.from_message(json.loads(text)), **options)


def _limit(message: Mapping[str, Any]) -> RateLimit:
    diffs = {name: float(message[name]) if name in message else None for name in ("min_diff", "max_diff")}
    return RateLimit(float(message["samples_per_insert"]), diffs["min_diff"], diffs["max_diff"], int(message["min_size"]))


def _staleness(message: Mapping[str, Any]) -> Staleness:
    return Staleness(
        message["kind"].lower(), int(message["max_lag"]), int(message["batch"]), int(message["every"]), message["slow"].lower(),
        float(message["lease_seconds"]), float(message["max_rollout_seconds"]),
    )  # fmt: skip


def _selector_message(selector: Selector | str, what: str) -> dict[str, Any]:
    if isinstance(selector, str):
        selector = Selector(selector)
    if isinstance(selector, Selector):
        return {"kind": _choice(selector.kind, SELECTORS, what), "exponent": selector.exponent}
    raise InvalidArgumentError(f"{what} is {selector!r}; it must be one of {', '.join(SELECTORS)}, or a Selector")


def _choice(value: Any, choices: Any, what: str) -> str:
    if value not in choices:
        raise InvalidArgumentError(f"{what} is {value!r}; it must be one of {', '.join(choices)}")
    return value.upper()


def _count(value: Any, what: str, bits: int = 64) -> int:
    """Returns `value` as a number that C++ takes, or raises."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << bits:
        raise InvalidArgumentError(f"{what} is {value!r}; it must be a whole number from 0 to 2^{bits} - 1")
    return int(value)


def to_json(message: Any) -> str:
    """Returns protobuf's JSON of a message, which has texts for numbers that JSON lacks."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value

    return json.dumps(plain(message))


count = _count
