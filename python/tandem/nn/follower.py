# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of modules follow an optimizer of torch: its step() pushes their gradients."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import TYPE_CHECKING, Any, Iterable, Iterator

import torch

from tandem.errors import InvalidArgumentError
from tandem.nn.handle import Handle, TableParameter

if TYPE_CHECKING:
    from tandem.nn.session import Session

# Backward passes without a step after which a warning says that there was none.
_MANY_PASSES = 1000


class Follower:
    """The tables of one client that follow one optimizer. The session's lock guards it."""

    def __init__(self, session: Session, optimizer: torch.optim.Optimizer) -> None:
        self._session = session
        self.optimizer: torch.optim.Optimizer = optimizer
        self.handles: list[Handle] = []
        self.unscaled: bool = False  # a GradScaler has divided the gradients that wait
        self.assigned: bool = False  # somebody has assigned gradients, to make the optimizer create its state
        self.suspended: bool = False
        self.steps: bool = False  # the optimizer reads gradients now, which for tables are pushed already
        self.passes: int = 0  # backward passes since the last step
        self.passed: bool = False  # there was one since the gradients were last dropped or pushed
        self._base_rates: dict[int, float] = {}  # by id of the handle
        self._added: list[TableParameter] = []  # to the optimizer's first group
        self._left: list[str] = []  # tables that follow another optimizer now
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_post_hook(self._after_state_dict)
        optimizer.register_load_state_dict_pre_hook(self._before_load_state_dict)

    def add(self, handles: Iterable[Handle], base_lr: float | None) -> None:
        groups = self.groups()
        first = self.optimizer.param_groups[0]
        for handle in handles:
            group = groups.get(id(handle.parameter))
            rate = _rate(first if group is None else group, handle, base_lr)
            if group is None:
                first["params"].append(handle.parameter)
                if "param_names" in first:
                    first["param_names"].append(handle.table)
                self._added.append(handle.parameter)
            if handle.follower is not None:
                handle.follower.remove(handle)
            self._base_rates[id(handle)] = rate
            handle.follower = self
            self.handles.append(handle)
        self._session.followers.add(self)
        self._groups_have_changed()

    def remove(self, handle: Handle) -> None:
        """Lets a table go that follows another optimizer from now on."""
        self.handles.remove(handle)
        del self._base_rates[id(handle)]
        self._left.append(handle.table)
        if any(handle.parameter is added for added in self._added):
            self._added = [added for added in self._added if added is not handle.parameter]
            group = self.groups()[id(handle.parameter)]
            i = next(i for i, p in enumerate(group["params"]) if p is handle.parameter)
            del group["params"][i]
            if "param_names" in group:
                del group["param_names"][i]
        if not self.handles:
            self._session.followers.discard(self)
        self._groups_have_changed()

    def _groups_have_changed(self) -> None:
        if hasattr(self.optimizer, "_clear_cache"):  # ZeroRedundancyOptimizer's, of which parameter is whose
            self.optimizer._clear_cache()

    def groups(self) -> dict[int, dict[str, Any]]:
        """Returns the group of each table's parameter that the optimizer has, by the parameter's id."""
        # Loading a state makes new groups.
        return {
            id(parameter): group
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if type(parameter) is TableParameter
        }

    def factor(self, handle: Handle, groups: dict[int, dict[str, Any]]) -> float:
        """Returns by what the table's learning rate is multiplied now."""
        group = groups.get(id(handle.parameter))
        if group is None:  # the program has removed it from the optimizer
            return 1.0
        factor = float(group["lr"]) / self._base_rates[id(handle)]
        if not math.isfinite(factor) or factor < 0:
            raise InvalidArgumentError(
                f"the optimizer's learning rate is {float(group['lr'])}, which is {factor} times the base rate that table "
                f"'{handle.table}' follows; it must be a number, 0 or more"
            )
        return factor

    def scale(self) -> tuple[float, bool]:
        """Returns by what step() divides gradients, and whether it skips them, as a GradScaler tells fused optimizers."""
        scale, infinite = getattr(self.optimizer, "grad_scale", None), getattr(self.optimizer, "found_inf", None)
        return 1.0 if scale is None else float(scale), infinite is not None and float(infinite) > 0

    def reads_no_rows(self) -> bool:
        """Returns whether the program is between a backward pass and step(), though it may have looked up no rows of a table."""
        if self.steps:
            return False
        return self.passed or any(
            p.grad is not None for g in self.optimizer.param_groups for p in g["params"] if type(p) is not TableParameter
        )

    # Hooks of the optimizer. torch.compile() of step() runs them outside of the graph.

    @torch.compiler.disable
    def _before_step(self, _: Any, args: Any, kwargs: Any) -> Any:
        # args[0] is the optimizer.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._session.step(self)
            return None

        def compute_and_push() -> Any:
            # The closure may run the backward pass, as Lightning's does.
            result = closure()
            self._session.step(self)
            return result

        if len(args) > 1:
            return (args[0], compute_and_push, *args[2:]), kwargs
        return args, {**kwargs, "closure": compute_and_push}

    @torch.compiler.disable
    def _after_step(self, *_: Any) -> None:
        self.steps = False

    def _after_state_dict(self, _: Any, state: dict[str, Any]) -> None:
        """Removes what follow() has added, so that the state is that of the optimizer alone."""
        group = self.optimizer.param_groups[0]
        here = [i for i, p in enumerate(group["params"]) if any(p is added for added in self._added)]
        for i in reversed(here):
            del state["param_groups"][0]["params"][i]
            if "param_names" in group:
                del state["param_groups"][0]["param_names"][i]

    def _before_load_state_dict(self, _: Any, state: dict[str, Any]) -> dict[str, Any] | None:
        added = [p for p in self.optimizer.param_groups[0]["params"] if any(p is one for one in self._added)]
        if not added or not state["param_groups"]:
            return None
        first = dict(state["param_groups"][0])
        missing = len(self.optimizer.param_groups[0]["params"]) - len(first["params"])
        if missing != len(added):
            return None
        first["params"] = [*first["params"], *(-1 - i for i in range(missing))]
        if "param_names" in first:
            first["param_names"] = [*first["param_names"], *(p.handle.table for p in added)]
        return {**state, "param_groups": [first, *state["param_groups"][1:]]}

    def count_pass(self) -> None:
        self.assigned = self.steps = False
        self.passed = True
        self.passes += 1
        if self.passes == _MANY_PASSES:
            warnings.warn(
                f"{_MANY_PASSES} backward passes have added up gradients of tables ({self.names()}), and step() of the optimizer "
                f"that they follow was not called: it pushes them",
                stacklevel=2,
            )

    def warn_of_tables_that_left(self) -> None:
        if self._left:
            left, self._left = self._left, []
            warnings.warn(
                f"step() of an optimizer does not train the tables {', '.join(repr(name) for name in sorted(left))}: they follow "
                f"another optimizer now, that of the last call of follow()",
                stacklevel=2,
            )

    def names(self) -> str:
        return ", ".join(sorted({handle.table for handle in self.handles}))


def _rate(group: dict[str, Any], handle: Handle, base_lr: float | None) -> float:
    if group.get("maximize"):
        raise InvalidArgumentError(
            f"the optimizer maximizes (maximize=True), and table '{handle.table}' cannot: negate the loss instead"
        )
    if base_lr is not None:
        if not base_lr > 0 or not math.isfinite(base_lr):
            raise InvalidArgumentError(f"base_lr is {base_lr}; it must be a number larger than 0")
        return float(base_lr)
    # OneCycleLR begins far below the rate that it is given.
    rate = group.get("max_lr", group.get("initial_lr", group.get("lr")))
    if rate is None:
        raise InvalidArgumentError("the optimizer's groups have no 'lr'; tables follow optimizers with learning rates")
    if not float(rate) > 0:
        raise InvalidArgumentError(
            f"the optimizer's learning rate is {float(rate)}; say at which rate table '{handle.table}' trains with its own: base_lr="
        )
    return float(rate)


def _followers_of(optimizer: torch.optim.Optimizer) -> list[Follower]:
    """Returns the followers of an optimizer, one for each client."""
    return optimizer.__dict__.setdefault("_tandem_followers", [])


def follow(session: Session, optimizer: torch.optim.Optimizer, handles: list[Handle], base_lr: float | None) -> None:
    optimizer = getattr(optimizer, "_optimizer", optimizer)  # of Lightning's wrapper
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(f"optimizer is a {type(optimizer).__name__}; it must be an optimizer of torch.optim")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("tables cannot follow LBFGS, whose step evaluates the loss several times; use another optimizer")
    has = {id(p) for group in optimizer.param_groups for p in group["params"]}
    mine = [handle for handle in handles if id(handle.parameter) in has] or [h for h in handles if h.follower is None] or handles
    for handle in mine:
        if handle.follower is not None and handle.follower.optimizer is optimizer:
            raise InvalidArgumentError(f"table '{handle.table}' of this module follows this optimizer already; call follow() once")
    followers = _followers_of(optimizer)
    found = next((f for f in followers if f._session is session), None)
    if found is None:
        found = Follower(session, optimizer)
        followers.append(found)
    with session._lock:
        found.add(mine, base_lr)


@contextlib.contextmanager
def without_tables(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """In this context the optimizers have no parameters of tables, and their steps push nothing: for saving and loading them."""
    removed: list[tuple[dict[str, Any], list[Any], list[str] | None]] = []
    followers: list[Follower] = []
    for optimizer in optimizers:
        followers += _followers_of(optimizer)
        for group in optimizer.param_groups:
            kept = [i for i, p in enumerate(group["params"]) if type(p) is not TableParameter]
            names = group.get("param_names")
            removed.append((group, list(group["params"]), None if names is None else list(names)))
            # In place: loading a state makes new groups with the same lists.
            group["params"][:] = [group["params"][i] for i in kept]
            if names is not None:
                names[:] = [names[i] for i in kept]
    for follower in followers:
        follower.suspended = True
    try:
        yield
    finally:
        for follower in followers:
            follower.suspended = False
        for group, parameters, names in removed:
            group["params"][:] = parameters
            if names is not None:
                group["param_names"][:] = names
