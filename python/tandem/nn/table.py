# SPDX-License-Identifier: Apache-2.0
"""The description of a table and its features."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from tandem._kinds import Kind
from tandem.client import Client
from tandem.errors import InvalidArgumentError

# By pooling, the number that C++ uses (tandem.v1.Pooling).
POOLING: dict[str | None, int] = {None: 0, "sum": 1, "mean": 2}

# The largest table that placement="auto" replicates. Its gradient is all-reduced whole at every step.
REPLICATED_BYTES = 64 << 10


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table of an EmbeddingCollection.

    features: the features whose ids are rows of this table; the default is one feature with the table's name.
    pooling: "sum" or "mean" of the rows of a bag; None: a row for each id.
    padding_idx: an id that has no row. It reads as zeros, gets no gradient, and does not count in a mean.
    optimizer: of tandem.optim; there is no default.
    placement: where the rows are.
        "sharded": on the servers.
        "replicated": in every worker, as an ordinary parameter of the module. DistributedDataParallel keeps it equal, and the
            optimizer of the dense part trains it, so `optimizer` is left out. For small tables whose rows every batch uses.
        "auto": replicated if num_embeddings is given and the rows take at most 64 KiB, else sharded. `optimizer` is for the
            sharded table.
    num_embeddings: the number of ids, which are 0, 1, ...; a replicated table needs it, a sharded one ignores it.
    negative_ids: what a negative id is. "refuse": an error. "bits": the unsigned id of the same 64 bits, as int64 columns hold
        hashes of 2^63 and more (Java, Spark). Client.pull() and the like take them as ids.view(np.uint64).

    The other fields are those of Client.create_table().
    """

    name: str
    dim: int
    features: Sequence[str] | None = None
    pooling: str | None = "sum"
    optimizer: Kind | None = None
    init: Kind | None = None
    mode: str = "async"
    padding_idx: int | None = None
    num_workers: int | None = None
    seed: int = 0
    row_type: str = "f32"
    stochastic_rounding: bool = False
    admission: Kind | None = None
    eviction: Kind | None = None
    byte_budget: int = 0
    spill: bool = False
    placement: str = "sharded"
    num_embeddings: int | None = None
    negative_ids: str = "refuse"

    def __post_init__(self) -> None:
        if self.pooling not in POOLING:
            raise InvalidArgumentError(f"table '{self.name}': pooling is {self.pooling!r}; it must be 'sum', 'mean' or None")
        if isinstance(self.features, str):
            raise InvalidArgumentError(
                f"table '{self.name}': features is the text {self.features!r}; it must be a list: [{self.features!r}]"
            )
        if not isinstance(self.dim, int) or self.dim < 1:
            raise InvalidArgumentError(f"table '{self.name}': dim is {self.dim!r}; it must be a positive number")
        if self.padding_idx is not None and self.padding_idx < 0:
            raise InvalidArgumentError(
                f"table '{self.name}': padding_idx is {self.padding_idx}; it must be an id, 0 or more: there is no last row to "
                f"count from"
            )

        if self.negative_ids not in ("refuse", "bits"):
            raise InvalidArgumentError(
                f"table '{self.name}': negative_ids is {self.negative_ids!r}; it must be 'refuse' or 'bits'"
            )
        self._check_placement()

    def _check_placement(self) -> None:
        if self.placement not in ("sharded", "replicated", "auto"):
            raise InvalidArgumentError(
                f"table '{self.name}': placement is {self.placement!r}; it must be 'sharded', 'replicated' or 'auto'"
            )
        if self.num_embeddings is not None and (not isinstance(self.num_embeddings, int) or self.num_embeddings < 1):
            raise InvalidArgumentError(
                f"table '{self.name}': num_embeddings is {self.num_embeddings!r}; it must be a positive number, or None"
            )
        if self.placement == "replicated":
            if self.num_embeddings is None:
                raise InvalidArgumentError(
                    f"table '{self.name}' is replicated and has no num_embeddings: a parameter needs a fixed number of ids. Give it, "
                    f"or leave a table of any ids sharded"
                )
            if self.optimizer is not None:
                raise InvalidArgumentError(
                    f"table '{self.name}' is replicated, so the optimizer of the dense part trains it; leave `optimizer` out"
                )
        if self.replicated:
            for field in ("row_type", "admission", "eviction", "byte_budget", "spill", "negative_ids"):
                value = getattr(self, field)
                if value != type(self).__dataclass_fields__[field].default:
                    raise InvalidArgumentError(
                        f"table '{self.name}' is replicated, and {field} is {value!r}; only sharded tables have a {field}"
                    )

    @property
    def replicated(self) -> bool:
        """Whether the rows are a parameter of the module."""
        if self.placement == "auto":
            return self.num_embeddings is not None and self.num_embeddings * self.dim * 4 <= REPLICATED_BYTES
        return self.placement == "replicated"

    @property
    def feature_names(self) -> list[str]:
        return [self.name] if self.features is None else list(self.features)

    def create(self, client: Client) -> None:
        """Creates the table on the servers. Does nothing if it exists with the same configuration."""
        client.create_table(
            self.name, self.dim, self.optimizer, self.init, mode=self.mode, num_workers=self.num_workers, seed=self.seed,
            row_type=self.row_type, stochastic_rounding=self.stochastic_rounding, admission=self.admission,
            eviction=self.eviction, byte_budget=self.byte_budget, spill=self.spill,
        )

    def check(self, client: Client) -> None:
        """Raises unless the servers have the table with this dim. For clients that cannot create it."""
        dim = client._dim(self.name)
        if dim != self.dim:
            raise InvalidArgumentError(f"table '{self.name}' has dim {dim} on the servers, here it is {self.dim}")

    def state(self) -> dict[str, Any]:
        """Returns the configuration as plain values, for a state_dict."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["features"] = self.feature_names
        fields["replicated"] = self.replicated
        for name in ("optimizer", "init", "admission", "eviction"):
            kind = fields[name]
            fields[name] = None if kind is None else dict(kind.message)
        return fields
