# SPDX-License-Identifier: Apache-2.0
"""The parameters that stand for tables, and the gradients that a table's parameter has."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from tandem.nn import across

if TYPE_CHECKING:
    from tandem.nn.engine import Engine
    from tandem.nn.follower import Follower


class Handle:
    """A table of a module: its parameter, the optimizer that it follows, and its gradients. The session's lock guards it."""

    def __init__(self, engine: Engine, table: str, dim: int) -> None:
        self.engine: Engine = engine
        self.table: str = table
        self.dim: int = dim
        self.parameter: TableParameter = _new_parameter(self, torch.zeros(1, dtype=torch.float32, device="cpu"), True)
        self.follower: Follower | None = None
        self.gathered: Any = None  # gradients of lookups that were added up, because somebody looks at them
        self.tensor: TableGradient | None = None  # over the memory of `gathered`
        self._accumulator: Any = None
        self.find_accumulator()

    def trains(self) -> bool:
        """Returns whether the backward pass that runs on this thread computes the gradient of this table."""
        if not self.parameter.requires_grad:
            return False
        # Outside of a backward pass (opcheck calls the operators directly) nothing says what is wanted.
        if torch._C._current_graph_task_id() == -1:
            return True
        try:
            return torch._C._will_engine_execute_node(self._accumulator)
        except RuntimeError:  # autograd.grad() of this parameter, which accumulates nothing
            return False

    def find_accumulator(self) -> None:
        """Keeps the node of autograd that a backward pass reaches if it trains the table. autograd.grad() of other inputs does not."""
        # Not when a backward pass asks: inside of a custom operator nothing makes nodes. A frozen parameter has none.
        requires_grad = self.parameter.requires_grad
        self.parameter.requires_grad_(True)
        with torch.enable_grad():
            self._accumulator = self.parameter.expand_as(self.parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self.parameter.requires_grad_(requires_grad)

    def forget(self) -> None:
        """Drops the gradients that were added up."""
        self.gathered = self.tensor = None


class TableParameter(torch.nn.Parameter):
    """Stands for a table among the parameters of a model. It has one element, which means nothing: the rows are on the servers.

    requires_grad: False freezes the table.
    grad: the gradients of the rows that this worker's backward passes have looked up since the last step, float32 [rows, dim], or
        None. The table has gradients between backward() and step() of the optimizer that it follows (follow()); None otherwise.
        In a job of several workers it has no rows, [0, dim], if only the other parameters of the optimizer have gradients.
        What changes them in place, such as clip_grad_norm_(), changes what step() pushes. None drops them.
    dtype: that of the module's outputs.
    """

    # Weak, because the handle has the node that owns this parameter: garbage collection does not see this reference.
    _handle: weakref.ref[Handle]

    @property
    def handle(self) -> Handle | None:
        found = self.__dict__.get("_handle")
        return None if found is None else found()

    @property
    def grad(self) -> torch.Tensor | None:  # type: ignore[override]
        handle = self.handle
        # torch.compile() makes a model of each parameter with its gradient, which must have the parameter's shape.
        if handle is None or torch._guards.TracingContext.try_get() is not None:
            return None
        return handle.engine.session.gradient_of(handle)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        handle = self.handle
        if handle is not None:
            handle.engine.session.set_gradient(handle, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __repr__(self, *_: Any, **__: Any) -> str:
        handle = self.handle
        return f"TableParameter({'' if handle is None else repr(handle.table)}, requires_grad={self.requires_grad})"

    def __deepcopy__(self, memo: Any) -> Any:
        # A module's copy has handles of its own (Engine.copy).
        copied = torch.nn.Parameter(torch.zeros(1, dtype=self.dtype, device=self.device), self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.nn.Parameter(torch.zeros(1, dtype=self.dtype), self.requires_grad).__reduce_ex__(protocol)


def _new_parameter(handle: Handle, data: torch.Tensor, requires_grad: bool) -> TableParameter:
    parameter = TableParameter(data, requires_grad)
    parameter._handle = weakref.ref(handle)
    return parameter


class Handles(torch.nn.Module):
    """The parameters of a module's tables, by name. A module of its own, which fully_shard() leaves out."""

    def __init__(self, handles: list[Handle]) -> None:
        super().__init__()
        self._handles = handles
        for handle in handles:
            # Names of parameters have no dots, and are no attributes of a module.
            name = handle.table.replace(".", "_")
            while hasattr(self, name):
                name += "_"
            self.register_parameter(name, handle.parameter)
        try:
            from torch.distributed._composable.contract import REGISTRY_KEY, RegistryItem
        except ImportError:  # a torch without fully_shard()
            return
        # fully_shard() leaves out modules that are replicated already.
        self.__dict__[REGISTRY_KEY] = {"replicate": RegistryItem()}

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        applied = super()._apply(*args, **kwargs)
        for handle in self._handles:
            handle.find_accumulator()  # a parameter that has changed its dtype or device has another one
        return applied

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        pass

    def _load_from_state_dict(self, *_: Any, **__: Any) -> None:
        pass


_NORMS = {torch.linalg.vector_norm, torch.linalg.norm, torch.norm, torch.Tensor.norm, torch._foreach_norm}
_UNSCALE = torch._amp_foreach_non_finite_check_and_unscale_
_ZERO = {torch.Tensor.zero_, torch._foreach_zero_}
# What returns the gradient itself: norms are often written p.grad.detach().data.norm(2).
_SAME = {torch.Tensor.detach, torch.Tensor.data.__get__}  # type: ignore[attr-defined]


class TableGradient(torch.Tensor):
    """The gradient of a TableParameter: this worker's share of it.

    Norms are those of the sum over all workers, so that clip_grad_norm_() multiplies the gradients of all workers, and those of
    the dense part, by the same number. GradScaler finds infinite gradients of all workers, so that all skip the same steps. Both
    are collective operations of the default process group, if its ranks are the workers. Everything else, such as
    clip_grad_value_(), sees and changes the worker's share.
    """

    _handle: Handle
    _gathered: Any  # its rows and their ids; None: it has no rows

    @staticmethod
    def of(handle: Handle, gathered: Any) -> TableGradient:
        rows = torch.empty(0, dtype=torch.float32, device="cpu") if gathered is None else torch.from_numpy(gathered.rows())
        return TableGradient._over(rows.view(-1, handle.dim), handle, gathered)

    @staticmethod
    def _over(rows: torch.Tensor, handle: Handle, gathered: Any) -> TableGradient:
        tensor = rows.as_subclass(TableGradient)
        tensor._handle = handle
        tensor._gathered = gathered
        return tensor

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copied = self.as_subclass(torch.Tensor).clone()
        memo[id(self)] = copied
        return copied

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in _NORMS:
                return _norm(func, args, kwargs)
            result = func(*_whole(args), **kwargs)
            if func in _SAME:
                return TableGradient._over(result, args[0]._handle, args[0]._gathered)
            if func is _UNSCALE:
                _unscaled(args)
            elif func in _ZERO:
                for gradient in _gradients_in(args):
                    gradient._handle.engine.session.dropped(gradient._handle)
            return result


def _gradients_in(args: Any) -> list[TableGradient]:
    given = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    return [each for each in given if isinstance(each, TableGradient)]


def _norm(func: Any, args: Any, kwargs: Any) -> Any:
    first = args[0]
    if isinstance(first, (list, tuple)):
        return func([_summed(each) if isinstance(each, TableGradient) else each for each in first], *args[1:], **kwargs)
    norm = func(_summed(first), *args[1:], **kwargs)
    follower = first._handle.follower
    return norm if follower is None else across.like_gradients_of(norm, follower.optimizer)


def _summed(gradient: TableGradient) -> torch.Tensor:
    handle = gradient._handle
    plain = gradient.as_subclass(torch.Tensor)
    if not across.connects(handle.engine.client):
        return plain
    gathered = gradient._gathered
    ids = torch.empty(0, dtype=torch.int64, device="cpu") if gathered is None else torch.from_numpy(gathered.ids().view("int64").copy())
    return across.sum_of_rows(ids, plain)


def _unscaled(args: Any) -> None:
    gradients = _gradients_in(args)
    if not gradients:
        return
    for gradient in gradients:
        if gradient._handle.follower is not None:
            gradient._handle.follower.unscaled = True
    if across.connects(gradients[0]._handle.engine.client):
        across.maximum_(args[1])


def _whole(args: Any) -> Any:
    """Returns the arguments with distributed tensors, such as FSDP's clip coefficient, as whole ones."""
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in args]

