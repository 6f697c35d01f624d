# SPDX-License-Identifier: Apache-2.0
"""Looks up the features of a module: in eager mode by an autograd.Function, in compiled graphs by custom operators."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from typing import Any, Iterator, Sequence

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from tandem._load import load_core
from tandem.client import Client
from tandem.errors import FailedPreconditionError, InvalidArgumentError
from tandem.nn.handle import Handle
from tandem.nn.recompute import Keep
from tandem.nn.session import Ahead, Session
from tandem.nn.table import POOLING, Table

_core = load_core()

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclasses.dataclass
class Batch:
    """The ids of all features of a module, in the order of Engine.features.

    offsets: of each feature that has bags of different sizes, else None. Bag b is ids[offsets[b] - base : offsets[b + 1] - base].
    ends_are_given: whether offsets have the end of the last bag.
    """

    ids: list[torch.Tensor]
    offsets: list[torch.Tensor | None]
    bases: list[int]
    weights: list[torch.Tensor | None]
    ends_are_given: bool = True


@dataclasses.dataclass(frozen=True)
class Feature:
    name: str
    dim: int
    pooled: bool


def features_of(tables: Sequence[Table]) -> list[Feature]:
    return [Feature(f, t.dim, t.pooling is not None) for t in tables for f in t.feature_names]


def check_names(tables: Sequence[Table]) -> None:
    """Raises if two tables, or two features, have the same name."""
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"there are two tables '{name}'; give one table both lists of features")
    seen: set[str] = set()
    for feature in features_of(tables):
        if feature.name in seen:
            raise InvalidArgumentError(f"two tables have the feature '{feature.name}'; give one of them another name")
        seen.add(feature.name)


class Engine:
    """The lookups of one module. Its number stands for it in compiled graphs."""

    def __init__(self, tables: Sequence[Table], client: Client, reduction: str, *, creates: bool = True) -> None:
        if reduction not in ("mean", "sum"):
            raise InvalidArgumentError(f"reduction is {reduction!r}; it must be 'mean' or 'sum'")
        if not isinstance(client, Client):
            raise InvalidArgumentError(
                f"client is {client!r}; it must be a tandem.Client, as tandem.connect() or tandem.local() return it"
            )
        self.client = client
        self.session: Session = Session.of(client)
        self.features: list[Feature] = features_of(tables)
        for table in tables:
            if client.read_only or not creates:
                table.check(client)
            else:
                table.create(client)
            self.session.tables[table.name] = table.dim
        self._scale = 1.0 / client.world_size if reduction == "mean" else 1.0
        self._plan = _core.make_lookup_plan(
            [
                (
                    t.name, t.dim,
                    [(f, POOLING[t.pooling], -1 if t.padding_idx is None else t.padding_idx) for f in t.feature_names],
                    t.negative_ids == "bits",
                )
                for t in tables
            ]
        )
        self._pool = _core.LookupPool()
        self.handles: list[Handle] = [Handle(self, table.name, table.dim) for table in tables]
        # Of each feature, the handle of its table.
        self.handle_of: list[Handle] = [handle for handle, table in zip(self.handles, tables) for _ in table.feature_names]
        self._register()

    def _register(self) -> None:
        self.pending: list[Any] = []  # lookups with gradients, of passes that have ended. The session's lock guards it
        self.session.engines.add(self)
        self.number: int = next(_numbers)
        _ENGINES[self.number] = self

    def copy(self) -> Engine:
        """Returns an engine of the same tables, whose handles follow no optimizer."""
        copied = Engine.__new__(Engine)
        copied.__dict__.update(self.__dict__)
        copied.handles = [Handle(copied, handle.table, handle.dim) for handle in self.handles]
        for mine, its in zip(self.handles, copied.handles):
            its.parameter.requires_grad_(mine.parameter.requires_grad)
            its.parameter.data = torch.zeros(1, dtype=mine.parameter.dtype, device=mine.parameter.device)
            its.find_accumulator()
        by_table = {handle.table: handle for handle in copied.handles}
        copied.handle_of = [by_table[handle.table] for handle in self.handle_of]
        copied._register()
        return copied

    @property
    def trains(self) -> bool:
        """Whether a table is not frozen."""
        return any(handle.parameter.requires_grad for handle in self.handles)

    # Forward

    def look_up(
        self, batch: Batch, training: bool, keep: Keep = Keep.BY_GRAPH, stacked: bool = False
    ) -> tuple[Any, list[torch.Tensor]]:
        """Returns the lookup and the outputs. Blocks until the rows are there.

        stacked: there is one output for all features, as torch.stack(outputs, 1) returns it.
        """
        request, tensors = self.request(batch)
        # Before the pull, which creates rows: shapes that cannot be stacked raise here.
        if stacked:
            outputs = [self._stacked_output(batch)]
            addresses = _addresses_in(outputs[0])
        else:
            outputs = self._outputs(batch)
            addresses = _addresses(outputs)
        lookup = self.session.look_up(self, request, training, keep)
        lookup.gather(addresses)
        del tensors
        device = batch.ids[0].device if batch.ids else torch.device("cpu")
        if device.type != "cpu":
            outputs = [output.to(device, non_blocking=True) for output in outputs]
        return lookup, outputs

    def start_ahead(self, batch: Batch, used: Any) -> Ahead:
        request, tensors = self.request(batch)
        ahead = self.session.start_ahead(self, request, used)
        del tensors
        return ahead

    def request(self, batch: Batch) -> tuple[Any, Any]:
        """Returns the request for C++, and the tensors to whose memory it refers."""
        ids = [_on_cpu(t, torch.int64) for t in batch.ids]
        offsets = [None if t is None else _on_cpu(t, torch.int64) for t in batch.offsets]
        weights = [None if t is None else _on_cpu(t, torch.float32) for t in batch.weights]
        parts = []
        for i, offset, base, weight, feature in zip(ids, offsets, batch.bases, weights, self.features):
            count = i.numel()
            if weight is not None and weight.numel() != count:
                raise InvalidArgumentError(
                    f"feature '{feature.name}' has {weight.numel()} weights for {count} ids; it must have one for each id"
                )
            # C++ takes the null address of an empty tensor for a feature without offsets.
            if offset is not None and offset.numel() == 0 and (batch.ends_are_given or count > 0):
                raise InvalidArgumentError(f"the offsets of feature '{feature.name}' are empty; they have one number for each bag")
            bags, length = (i.shape[0], i.shape[1]) if offset is None and feature.pooled and i.dim() == 2 else (count, 1)
            parts.append(
                (
                    i.data_ptr(), count, bags, length, 0 if offset is None else offset.data_ptr(),
                    0 if offset is None else offset.numel(), base, batch.ends_are_given, 0 if weight is None else weight.data_ptr(),
                )
            )
        return _core.make_lookup_request(self._plan, parts), (ids, offsets, weights)

    def prepare(self, request: Any) -> Any:
        lookup = self._pool.take(self._plan)
        lookup.prepare(request)
        return lookup

    def shapes(self, ids: Sequence[torch.Tensor], offsets: Sequence[torch.Tensor | None], ends_are_given: bool) -> list[list[int]]:
        shapes: list[list[int]] = []
        for i, offset, feature in zip(ids, offsets, self.features):
            if not feature.pooled:
                shapes.append([*i.shape, feature.dim])
            elif offset is None:
                shapes.append([i.shape[0], feature.dim])
            else:
                shapes.append([offset.shape[0] - (1 if ends_are_given else 0), feature.dim])
        return shapes

    def _outputs(self, batch: Batch) -> list[torch.Tensor]:
        return [_empty_output(batch, shape) for shape in self.shapes(batch.ids, batch.offsets, batch.ends_are_given)]

    def _stacked_output(self, batch: Batch) -> torch.Tensor:
        shapes = self.shapes(batch.ids, batch.offsets, batch.ends_are_given)
        for shape, feature in zip(shapes, self.features):
            if len(shape) != 2:
                raise InvalidArgumentError(
                    f"the output of feature '{feature.name}' is {shape} and cannot be stacked; it must be [bags, dim]: give its table "
                    f"a pooling"
                )
            if shape != shapes[0]:
                raise InvalidArgumentError(
                    f"outputs of different shapes cannot be stacked: that of feature '{feature.name}' is {shape}, that of "
                    f"'{self.features[0].name}' {shapes[0]}; all must be the same [bags, dim]"
                )
        return _empty_output(batch, [shapes[0][0], len(shapes), shapes[0][1]])

    # Backward

    def scatter(self, lookup: Any, gradients: Sequence[torch.Tensor | None], weight_sizes: Sequence[int | None]) -> list[torch.Tensor | None]:
        """Adds gradients of outputs to the lookup, which the session pushes. Returns the gradients of weights.

        weight_sizes: of each feature, the number of weights that need a gradient, or None.
        """
        given = _gradients_on_cpu(gradients)
        return self._scatter(lookup, _addresses(given), weight_sizes)

    def scatter_stacked(self, lookup: Any, gradient: torch.Tensor | None, weight_sizes: Sequence[int | None]) -> list[torch.Tensor | None]:
        """Does what scatter() does, with the gradient of a stacked output."""
        if gradient is None:
            return self._scatter(lookup, [(0, 0)] * len(self.features), weight_sizes)
        in_place = gradient.is_cpu and gradient.dtype == torch.float32 and gradient.stride(2) == 1
        given = gradient if in_place else _gradients_on_cpu([gradient])[0]
        return self._scatter(lookup, _addresses_in(given), weight_sizes)

    def _scatter(
        self, lookup: Any, gradients: Sequence[tuple[int, int]], weight_sizes: Sequence[int | None]
    ) -> list[torch.Tensor | None]:
        d_weights = [None if n is None else torch.zeros(n, dtype=torch.float32, device="cpu") for n in weight_sizes]
        any_weights = any(d is not None for d in d_weights)
        trains = [handle.trains() for handle in self.handles]
        lookup.scatter(
            gradients, self._scale,
            [0 if d is None else d.data_ptr() for d in d_weights] if any_weights else [], trains,
        )
        if any(trains):
            self.session.collect(self, lookup)
        return d_weights

    @contextlib.contextmanager
    def renumbered(self, number: int) -> Iterator[None]:
        """Graphs that are traced in this context know the engine by this number."""
        own, self.number = self.number, number
        _ENGINES[number] = self
        try:
            yield
        finally:
            self.number = own
            del _ENGINES[number]


def run(engine: Engine, batch: Batch, training: bool) -> list[torch.Tensor]:
    """Returns the outputs of all features."""
    if torch.compiler.is_compiling():
        if training and _is_exporting():
            raise FailedPreconditionError(
                "a program of torch.export cannot train tables, and this module is in training mode: call eval() of the model before "
                "torch.export.export(), or use tandem.torch.export(), whose programs other processes can load"
            )
        empty = [o is None for o in batch.offsets]
        unweighted = [w is None for w in batch.weights]
        outputs = _lookup_op(
            [handle.parameter for handle in engine.handles] if training else [], engine.number, training, batch.ids,
            [o for o in batch.offsets if o is not None], empty, batch.bases, batch.ends_are_given,
            [w for w in batch.weights if w is not None], unweighted,
        )
        return outputs[:-1]
    return _run_eagerly(engine, batch, training, stacked=False)


def _is_exporting() -> bool:
    # Versions before 2.7 do not tell export from compilation.
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def run_stacked(engine: Engine, batch: Batch, training: bool) -> torch.Tensor:
    """Returns the outputs of all features, stacked along dimension 1."""
    if torch.compiler.is_compiling():
        return torch.stack(run(engine, batch, training), 1)
    return _run_eagerly(engine, batch, training, stacked=True)[0]


def _run_eagerly(engine: Engine, batch: Batch, training: bool, stacked: bool) -> list[torch.Tensor]:
    if not training:
        return engine.look_up(batch, False, stacked=stacked)[1]
    keep = Keep.BY_GRAPH if torch.is_grad_enabled() else Keep.UNTIL_RECOMPUTED
    parameters = [handle.parameter for handle in engine.handles]
    return list(_Lookup.apply(engine, batch, keep, stacked, *batch.weights, *parameters))


def _empty_output(batch: Batch, shape: Sequence[int]) -> torch.Tensor:
    # Copies to a GPU are asynchronous from pinned memory only.
    pinned = bool(batch.ids) and batch.ids[0].device.type == "cuda"
    return torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=pinned)


def _addresses(tensors: Sequence[torch.Tensor | None]) -> list[tuple[int, int]]:
    """Returns the address of each tensor and the distance of its rows; None is (0, 0)."""
    return [(0, 0) if t is None else (t.data_ptr(), t.stride(0) if t.dim() == 2 else t.shape[-1]) for t in tensors]


def _addresses_in(stacked: torch.Tensor) -> list[tuple[int, int]]:
    """Returns the same for the parts of a tensor [rows, parts, dim]."""
    address, (row, part, _) = stacked.data_ptr(), stacked.stride()
    return [(address + 4 * i * part, row) for i in range(stacked.shape[1])]


def _on_cpu(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_cpu and tensor.dtype == dtype and tensor.is_contiguous():
        return tensor
    if tensor.is_meta:
        raise InvalidArgumentError(
            f"a tensor of shape {tuple(tensor.shape)} is on the device meta, which has no data; ids, offsets, weights and gradients "
            f"must be on the CPU or on a GPU"
        )
    return tensor.detach().to(device="cpu", dtype=dtype).contiguous()


def _rows_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose rows, along its last dimension, are contiguous and evenly spaced."""
    # torch.stack() and torch.cat() hand out such gradients of their parts.
    if tensor.dim() == 2 and tensor.stride(1) == 1 and tensor.is_cpu and tensor.dtype == torch.float32:
        return tensor
    return _on_cpu(tensor, torch.float32)


def _gradients_on_cpu(gradients: Sequence[torch.Tensor | None]) -> list[Any]:
    """Returns the gradients in host memory. Waits once for all copies from a GPU."""
    given: list[Any] = []
    devices = set()
    for gradient in gradients:
        if gradient is None or not gradient.is_cuda:
            given.append(None if gradient is None else _rows_on_cpu(gradient))
            continue
        # Copies to memory that is not pinned would each wait for the GPU.
        given.append(torch.empty(gradient.shape, dtype=torch.float32, device="cpu", pin_memory=True))
        given[-1].copy_(gradient.detach(), non_blocking=True)
        devices.add(gradient.device)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return given


def check_ids(ids: Any, what: str) -> torch.Tensor:
    """Returns `ids` if it is a tensor of integers."""
    if not isinstance(ids, torch.Tensor):
        raise InvalidArgumentError(f"{what} is a {type(ids).__name__}; it must be a tensor of integers")
    if ids.dtype not in _INTEGERS:
        if ids.dtype == torch.uint64:
            return ids.view(torch.int64)
        raise InvalidArgumentError(f"{what} has dtype {ids.dtype}; ids must be integers: torch.int64")
    return ids


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, engine: Engine, batch: Batch, keep: Keep, stacked: bool, *weights_and_parameters: torch.Tensor | None
    ) -> Any:
        weights = weights_and_parameters[: len(batch.weights)]
        lookup, outputs = engine.look_up(batch, True, keep, stacked)
        ctx.engine, ctx.lookup, ctx.stacked = engine, lookup, stacked
        ctx.weights = [(None, None) if w is None or not w.requires_grad else (w.numel(), w) for w in weights]
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        sizes = [n for n, _ in ctx.weights]
        if ctx.stacked:
            d_weights = ctx.engine.scatter_stacked(ctx.lookup, gradients[0], sizes)
        else:
            d_weights = ctx.engine.scatter(ctx.lookup, gradients, sizes)
        shaped = [None if d is None else d.to(w.device, w.dtype).view(w.shape) for d, (_, w) in zip(d_weights, ctx.weights)]
        return (None, None, None, None, *shaped, *(None for _ in ctx.engine.handles))


# Compiled graphs. Operators have tensors and numbers as arguments: an engine is its number, and a lookup is a tensor over memory
# that owns it.

_numbers = itertools.count(1)
_ENGINES: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()


class _Ticket(np.ndarray):
    """An array of one number, with the lookup that it stands for. A tensor over its memory keeps it alive."""

    lookup: Any


_TICKETS: weakref.WeakValueDictionary[int, _Ticket] = weakref.WeakValueDictionary()


def _ticket_of(lookup: Any) -> torch.Tensor:
    ticket = np.zeros(1, np.int64).view(_Ticket)
    ticket[0] = next(_numbers)
    ticket.lookup = lookup
    _TICKETS[int(ticket[0])] = ticket
    return torch.from_numpy(ticket)


def _all_features(given: list[torch.Tensor], missing: list[bool]) -> list[torch.Tensor | None]:
    items = iter(given)
    return [None if absent else next(items) for absent in missing]


@torch.library.custom_op("tandem::lookup", mutates_args=())
def _lookup_op(
    parameters: list[torch.Tensor], engine: int, training: bool, ids: list[torch.Tensor], offsets: list[torch.Tensor], no_offsets: list[bool],
    bases: list[int], ends_are_given: bool, weights: list[torch.Tensor], no_weights: list[bool],
) -> list[torch.Tensor]:
    batch = Batch(ids, _all_features(offsets, no_offsets), bases, _all_features(weights, no_weights), ends_are_given)
    lookup, outputs = _ENGINES[engine].look_up(batch, training, Keep.UNTIL_PUSH)
    return [*outputs, _ticket_of(lookup)]


@_lookup_op.register_fake
def _(
    parameters: list[torch.Tensor], engine: int, training: bool, ids: list[torch.Tensor], offsets: list[torch.Tensor], no_offsets: list[bool],
    bases: list[int], ends_are_given: bool, weights: list[torch.Tensor], no_weights: list[bool],
) -> list[torch.Tensor]:
    shapes = _ENGINES[engine].shapes(ids, _all_features(offsets, no_offsets), ends_are_given)
    device = ids[0].device if ids else "cpu"
    outputs = [torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes]
    return [*outputs, torch.empty(1, dtype=torch.int64, device="cpu")]


@torch.library.custom_op("tandem::scatter", mutates_args=())
def _scatter_op(
    ticket: torch.Tensor, engine: int, gradients: list[torch.Tensor], no_gradient: list[bool], weights: list[torch.Tensor],
    no_weights: list[bool],
) -> list[torch.Tensor]:
    lookup = _TICKETS[int(ticket.item())].lookup
    given = _all_features(weights, no_weights)
    d_weights = _ENGINES[engine].scatter(
        lookup, _all_features(gradients, no_gradient), [None if w is None else w.numel() for w in given]
    )
    shaped = [d.to(w.device, w.dtype).view(w.shape) for d, w in zip(d_weights, given) if d is not None and w is not None]
    return [torch.zeros(1, dtype=torch.float32, device="cpu"), *shaped]


@_scatter_op.register_fake
def _(
    ticket: torch.Tensor, engine: int, gradients: list[torch.Tensor], no_gradient: list[bool], weights: list[torch.Tensor],
    no_weights: list[bool],
) -> list[torch.Tensor]:
    return [torch.zeros(1, dtype=torch.float32, device="cpu"), *(torch.empty_like(w) for w in weights)]


# The pushes of a graph stay in its order, and none is removed because nothing uses its result. Before versions that can say so,
# the parameters' gradients alone keep them.
if hasattr(_scatter_op, "register_effect"):
    _scatter_op.register_effect(torch.library.EffectType.ORDERED)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    parameters, ctx.engine, ctx.training, ids, offsets, _, _, _, weights, ctx.no_weights = inputs
    ctx.parameters = [(p.dtype, p.device) for p in parameters]
    ctx.ids, ctx.offsets = len(ids), len(offsets)
    ctx.save_for_backward(output[-1], *weights)


def _backward(ctx: Any, gradients: list[torch.Tensor | None]) -> Any:
    ticket, *weights = ctx.saved_tensors
    d_weights: list[torch.Tensor | None] = [None for _ in weights]
    # Autograd calls the function only if an input needs a gradient. The gradients of tables' parameters are zeros.
    d_parameters: list[torch.Tensor | None] = [None for _ in ctx.parameters]
    if ctx.training:
        outputs = gradients[:-1]
        results = _scatter_op(
            ticket, ctx.engine, [g for g in outputs if g is not None], [g is None for g in outputs], weights, ctx.no_weights
        )
        d_parameters = [results[0].to(dtype=dtype, device=device) for dtype, device in ctx.parameters]
        d_weights = results[1:]
    return d_parameters, None, None, [None] * ctx.ids, [None] * ctx.offsets, None, None, None, d_weights, None


_lookup_op.register_autograd(_backward, setup_context=_setup)
