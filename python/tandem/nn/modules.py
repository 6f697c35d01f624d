# SPDX-License-Identifier: Apache-2.0
"""The modules. What they share with each other is in tandem.nn.engine and tandem.nn.session."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Mapping, Sequence

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig

from tandem._kinds import Kind
from tandem.client import Client
from tandem.errors import InvalidArgumentError
from tandem.nn import replicated
from tandem.nn.engine import Batch, Engine, Feature, check_ids, check_names, features_of, run, run_stacked
from tandem.nn.follower import follow
from tandem.nn.handle import Handles
from tandem.nn.join import TablesJoinHook, join_device, make_ddp_join_tables
from tandem.nn.table import Table


class _Module(torch.nn.Module, Joinable):
    """What all modules of this package can do.

    Its parameters stand for the tables (tandem.nn.handle.TableParameter): requires_grad_(False) freezes these, and follow() makes
    an optimizer of torch push their gradients. The dtype of a parameter, which to() and double() change, is that of the outputs;
    rows travel as float32 at most.

    It takes part in torch.distributed.algorithms.Join, also by join() of a DistributedDataParallel around it: a worker that has
    no more data then pushes empty steps, so that tables in sync and bounded mode go on.

    A copy (copy.deepcopy) has the same rows on the servers, and copies of the replicated ones.
    """

    def __init__(self, tables: Sequence[Table], client: Client, reduction: str) -> None:
        torch.nn.Module.__init__(self)
        self._join_config = _JoinConfig.construct_disabled_join_config()
        self.tables: tuple[Table, ...] = tuple(tables)
        check_names(self.tables)
        self._gradient_factor = float(client.world_size) if reduction == "sum" else 1.0  # of replicated tables
        self._engine = Engine([table for table in self.tables if not table.replicated], client, reduction)
        if self._engine.handles:
            self.handles: Handles = Handles(self._engine.handles)
        self._copies = {f: table for table in self.tables if table.replicated for f in table.feature_names}
        self._copied = features_of([table for table in self.tables if table.replicated])
        if self._copied:
            names = [_parameter_name(table) for table in self.tables if table.replicated]
            if len(set(names)) < len(names):
                raise InvalidArgumentError(f"names of replicated tables differ by dots only, which are underscores here: {names}")
            self.replicated: torch.nn.ParameterDict = torch.nn.ParameterDict(
                {_parameter_name(table): replicated.make_parameter(table) for table in self.tables if table.replicated}
            )

    @property
    def client(self) -> Client:
        return self._engine.client

    @property
    def _trains(self) -> bool:
        return self.training and not self._engine.client.read_only and self._engine.trains

    def follow(self, optimizer: torch.optim.Optimizer, *, base_lr: float | None = None) -> None:
        """Makes the tables follow an optimizer of torch: its step() pushes their gradients.

            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            emb.follow(optimizer)

        Until then backward() pushes them. With it, the tables behave as parameters of the optimizer do:

        - gradients of several backward passes add up until step(), or until zero_grad() drops them;
        - the learning rate of a table, which its own optimizer has (tandem.optim), is multiplied by the rate of the group of its
          parameter, divided by `base_lr`, so that schedulers of torch act on tables;
        - a GradScaler that steps the optimizer divides their gradients, and skips their steps;
        - clip_grad_norm_() and clip_grad_value_() change the gradients of their parameters (named_parameters(): TableParameter).

        The rule of the update is that of the table's own optimizer; other settings of `optimizer`, such as weight_decay, do not
        concern tables. step() of a worker without gradients is a step of tables in sync and bounded mode, too. After step() the
        tables' parameters have no gradients.

        optimizer: if it has no parameter of this module, they are added to its first group. Its state_dict() does not show them.
            A later call with another optimizer moves the tables to it.
        base_lr: the rate at which tables train with their own rates; the default is that of the group: its max_lr, which OneCycleLR
            sets, its initial_lr, which other schedulers set, or its lr now.
        """
        follow(self._engine.session, optimizer, self._engine.handles, base_lr)

    def push(self) -> None:
        """Pushes the gradients that wait, of all modules of the client, and counts a step even if there are none.

        For programs without an optimizer of torch: a worker that has nothing to train in a step in which others train calls it,
        because tables in sync and bounded mode wait for every worker. With follow(), optimizer.step() does it.
        """
        self._engine.session.push()

    def flush(self) -> None:
        """Blocks until all pushes are acknowledged. Raises the error of the first that failed.

        A lookup that was not prefetched does it too, so that it sees the updates of the steps before.
        """
        self._engine.session.wait()

    @property
    def skipped_steps(self) -> int:
        """The number of steps that a GradScaler has skipped. zero_grad() after such a step counts it, for the other workers, too."""
        return self._engine.session.skipped_steps

    def get_extra_state(self) -> Any:
        return {"tables": [table.state() for table in self.tables]}

    def set_extra_state(self, state: Any) -> None:
        mine = {table.name: table.state() for table in self.tables}
        for saved in state["tables"]:
            here = mine.get(saved["name"])
            if here is None:
                raise InvalidArgumentError(
                    f"the state_dict has the table '{saved['name']}', which this module has not; it has: {', '.join(sorted(mine))}"
                )
            for field in ("dim", "row_type", "replicated"):
                # Before tables could be replicated, the field was absent.
                if saved.get(field, False) != here[field]:
                    raise InvalidArgumentError(
                        f"the state_dict was saved with {field} {saved.get(field, False)} of table '{saved['name']}', here it is "
                        f"{here[field]}"
                    )

    def __deepcopy__(self, memo: Any) -> Any:
        # A copy, such as an averaged model makes, has the same rows. Its parameters are its own: it may be frozen.
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__.update({name: copy.copy(v) if isinstance(v, dict) else v for name, v in self.__dict__.items()})
        copied._engine = self._engine.copy()
        copied._modules = {
            name: Handles(copied._engine.handles) if name == "handles" else copy.deepcopy(module, memo)  # replicated rows
            for name, module in self._modules.items()
        }
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a module of tandem.nn cannot be pickled: save its state_dict(), and the rows by client.save_checkpoint()")

    def extra_repr(self) -> str:
        return ", ".join(f"{table.name}: {table.dim}" for table in self.tables)

    def _outputs(self, arguments: Any) -> dict[str, torch.Tensor]:
        """Returns the outputs by feature, in the order of the tables."""
        self._notify_join()
        outputs: dict[str, torch.Tensor] = {}
        features = self._engine.features
        if features:
            batch = self._batch(arguments, features)
            found = run(self._engine, batch, self._trains or self._weights_train(batch))
            outputs = {
                feature.name: _with_dtype(output, handle.parameter.dtype)
                for feature, output, handle in zip(features, found, self._engine.handle_of)
            }
        if not self._copied:
            return outputs
        batch = self._batch(arguments, self._copied)
        for feature, ids, offsets, base, weights in zip(self._copied, batch.ids, batch.offsets, batch.bases, batch.weights):
            table = self._copies[feature.name]
            outputs[feature.name] = replicated.look_up(
                self.replicated[_parameter_name(table)], self._gradient_factor, table, feature.name, ids, offsets, base,
                batch.ends_are_given, weights,
            )
        return {name: outputs[name] for table in self.tables for name in table.feature_names}

    # Join. Tables alone need it only in the first module that the context is given.

    def _notify_join(self) -> None:
        if self.training and self._join_config.enable and not torch.compiler.is_compiling():
            Join.notify_join_context(self)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        return TablesJoinHook(self._engine.session)

    @property
    def join_device(self) -> torch.device:
        return join_device()

    @property
    def join_process_group(self) -> Any:
        return torch.distributed.group.WORLD

    def _weights_train(self, batch: Batch) -> bool:
        """Returns whether weights need gradients, as they may although the tables are frozen."""
        return self.training and not self._engine.client.read_only and any(w is not None and w.requires_grad for w in batch.weights)

    def _batch(self, arguments: Any, features: Sequence[Feature]) -> Batch:
        raise NotImplementedError


def _with_dtype(output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # to() would be a node of exported graphs.
    return output if output.dtype == dtype else output.to(dtype)


def _parameter_name(table: Table) -> str:
    # Names of parameters have no dots.
    return table.name.replace(".", "_")


class EmbeddingCollection(_Module):
    """Embeddings of any number of features, in one lookup and one push a step.

        emb = tandem.nn.EmbeddingCollection([tandem.nn.Table("user", dim=64, optimizer=...)], client)
        out = emb({"user": ids})                       # {"user": [B, 64]}

    The input is a dict, or a KeyedJaggedTensor of TorchRec. A feature is

    - a tensor [B, L]: B bags of L ids; [B]: B bags of one id,
    - a tuple (values, offsets), or (values, offsets, weights): bag b is values[offsets[b]:offsets[b + 1]]; offsets has B + 1
      positions; weights belong to pooling="sum".

    A pooled feature's output is [B, dim]. Without pooling it is the shape of the ids, and dim. With a KeyedJaggedTensor whose keys
    have different strides, B is the key's; with inverse indices it is that of the batch before its deduplication.

    reduction: gradients are divided by the number of workers, as DistributedDataParallel does; "sum" leaves them as they are.

    Outside of training (module.eval()) the module creates no rows, and its outputs need no gradient.
    """

    def __init__(self, tables: Sequence[Table], client: Client, *, reduction: str = "mean") -> None:
        super().__init__(tables, client, reduction)

    def forward(self, features: Any) -> dict[str, torch.Tensor]:
        return self._expanded(features, self._outputs(features))

    def stack(self, features: Any) -> torch.Tensor:
        """Returns the outputs of all features in one tensor, [B, features, dim], in the order of the tables.

        It is torch.stack(list(self(features).values()), 1) without the copies. All features have the same dim and number of bags.
        """
        if self._copied or not self._engine.features or _inverse_indices(features) is not None:
            return torch.stack(list(self(features).values()), 1)
        self._notify_join()
        batch = self._batch(features, self._engine.features)
        dtypes = {handle.parameter.dtype for handle in self._engine.handles}
        if len(dtypes) > 1:
            raise InvalidArgumentError(f"outputs of different dtypes cannot be stacked: {sorted(str(dtype) for dtype in dtypes)}")
        return _with_dtype(run_stacked(self._engine, batch, self._trains or self._weights_train(batch)), dtypes.pop())

    def _batch(self, arguments: Any, features: Sequence[Feature]) -> Batch:
        if isinstance(arguments, Mapping):
            return self._batch_of_mapping(arguments, features)
        if hasattr(arguments, "offset_per_key"):
            return self._batch_of_jagged(arguments, features)
        raise InvalidArgumentError(
            f"the features are a {type(arguments).__name__}; they must be a dict of tensors or of (values, offsets), or a "
            f"KeyedJaggedTensor"
        )

    def _batch_of_mapping(self, given: Mapping[str, Any], features: Sequence[Feature]) -> Batch:
        batch = Batch([], [], [], [])
        for feature in features:
            if feature.name not in given:
                raise InvalidArgumentError(
                    f"the features lack '{feature.name}'; they have: {', '.join(str(name) for name in given) or 'none'}"
                )
            value = given[feature.name]
            offsets = weights = None
            if isinstance(value, (tuple, list)):
                if len(value) not in (2, 3):
                    raise InvalidArgumentError(
                        f"feature '{feature.name}' is a tuple of {len(value)}; it must be (values, offsets) or "
                        f"(values, offsets, weights)"
                    )
                offsets = value[1]
                weights = value[2] if len(value) == 3 else None
                value = value[0]
            ids = check_ids(value, f"feature '{feature.name}'")
            if offsets is not None:
                offsets = check_ids(offsets, f"the offsets of feature '{feature.name}'")
            _add(batch, self.tables, feature, ids, offsets, 0, weights)
        return batch

    def _batch_of_jagged(self, jagged: Any, features: Sequence[Feature]) -> Batch:
        keys = list(jagged.keys())
        starts = jagged.offset_per_key()
        values, offsets, weights = jagged.values(), jagged.offsets(), jagged.weights_or_none()
        first_bags = _first_bags(jagged, keys, offsets)
        batch = Batch([], [], [], [])
        for feature in features:
            if feature.name not in keys:
                raise InvalidArgumentError(f"the KeyedJaggedTensor lacks '{feature.name}'; it has: {', '.join(keys) or 'no key'}")
            k = keys.index(feature.name)
            begin, end = starts[k], starts[k + 1]
            _add(
                batch, self.tables, feature, check_ids(values[begin:end], f"feature '{feature.name}'"),
                offsets[first_bags[k] : first_bags[k + 1] + 1], begin, None if weights is None else weights[begin:end],
            )
        return batch

    def _expanded(self, jagged: Any, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the outputs of the batch that a KeyedJaggedTensor with inverse indices has deduplicated."""
        inverse = _inverse_indices(jagged)
        if inverse is None:
            return outputs
        keys, indices = list(inverse[0]), inverse[1]
        expanded = {}
        for table in self.tables:
            for name in table.feature_names:
                if table.pooling is None:
                    raise InvalidArgumentError(
                        f"feature '{name}' has no pooling, and the KeyedJaggedTensor has inverse indices, which repeat bags; give its "
                        f"table a pooling"
                    )
                if name not in keys:
                    raise InvalidArgumentError(
                        f"the inverse indices of the KeyedJaggedTensor lack '{name}'; they have: {', '.join(keys) or 'no key'}"
                    )
                expanded[name] = outputs[name].index_select(0, indices[keys.index(name)].to(outputs[name].device))
        return expanded


def _inverse_indices(jagged: Any) -> Any:
    get = getattr(jagged, "inverse_indices_or_none", None)
    return None if get is None else get()


def _first_bags(jagged: Any, keys: Sequence[str], offsets: torch.Tensor) -> list[int]:
    """Returns for each key the position of its first bag among all bags, and their number."""
    bags = max(0, offsets.numel() - 1)
    of_keys = getattr(jagged, "stride_per_key", None)
    strides = list(of_keys()) if of_keys is not None else [bags // max(1, len(keys))] * len(keys)
    if len(strides) != len(keys) or sum(strides) != bags:
        raise InvalidArgumentError(
            f"the KeyedJaggedTensor has {bags} bags, and its keys ({', '.join(keys) or 'none'}) have {strides}; each key must have "
            f"as many bags as its stride says"
        )
    return [0, *itertools.accumulate(strides)]


def _add(
    batch: Batch, tables: Sequence[Table], feature: Any, ids: torch.Tensor, offsets: torch.Tensor | None, base: int, weights: Any
) -> None:
    if offsets is None:
        if feature.pooled and ids.dim() not in (1, 2):
            raise InvalidArgumentError(f"feature '{feature.name}' has shape {tuple(ids.shape)}; it must be [B], or [B, L]")
    elif ids.dim() != 1 or offsets.dim() != 1:
        raise InvalidArgumentError(
            f"feature '{feature.name}' has values of shape {tuple(ids.shape)} and offsets of shape {tuple(offsets.shape)}; both "
            f"must have one dimension"
        )
    if weights is not None:
        if not isinstance(weights, torch.Tensor) or not weights.dtype.is_floating_point:
            raise InvalidArgumentError(f"the weights of feature '{feature.name}' must be a tensor of floats, one for each id")
        if next(t.pooling for t in tables if feature.name in t.feature_names) != "sum":
            raise InvalidArgumentError(f"feature '{feature.name}' has weights; these need a table with pooling='sum'")
    batch.ids.append(ids)
    batch.offsets.append(offsets)
    batch.bases.append(base)
    batch.weights.append(weights)


_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_UNSUPPORTED = "{} is not supported: the rows are on servers, whose optimizer updates them. {}"


def _refuse(max_norm: Any, scale_grad_by_freq: bool, dtype: Any) -> None:
    if max_norm is not None:
        raise InvalidArgumentError(_UNSUPPORTED.format("max_norm", "Limit updates with the optimizer's clip_norm."))
    if scale_grad_by_freq:
        raise InvalidArgumentError(_UNSUPPORTED.format("scale_grad_by_freq", "Leave it out."))
    if dtype is not None and dtype not in _DTYPES:
        raise InvalidArgumentError(f"dtype is {dtype}; it must be one of {', '.join(str(one) for one in _DTYPES)}")


class EmbeddingBag(_Module):
    """torch.nn.EmbeddingBag over a table on servers: without num_embeddings, since a table has any ids from 0 to 2^63 - 1.

    embedding_dim ... padding_idx: as in torch. mode is "mean" or "sum". max_norm and scale_grad_by_freq are errors. norm_type,
        sparse and device are accepted and have no effect: outputs are where the ids are. dtype is that of the outputs; rows
        travel as float32 at most.
    name: of the table. client: as tandem.connect() returns it. optimizer: of tandem.optim; there is no default.
    update_mode: as Client.create_table() takes it. options: other fields of Table (seed, placement, num_embeddings, ...).

    Several modules of a client share one push. One EmbeddingCollection also has one lookup for all of its tables.
    """

    def __init__(
        self,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = True,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        name: str,
        client: Client,
        optimizer: Kind | None = None,
        init: Kind | None = None,
        update_mode: str = "async",
        reduction: str = "mean",
        **options: Any,
    ) -> None:
        _refuse(max_norm, scale_grad_by_freq, dtype)
        if mode not in ("sum", "mean"):
            raise InvalidArgumentError(f"mode is {mode!r}; it must be 'sum' or 'mean' (update_mode is that of the table)")
        table = Table(
            name, embedding_dim, pooling=mode, optimizer=optimizer, init=init, mode=update_mode, padding_idx=padding_idx, **options
        )
        super().__init__([table], client, reduction)
        if dtype is not None:
            self.to(dtype)
        self.embedding_dim: int = embedding_dim
        self.mode: str = mode
        self.include_last_offset: bool = include_last_offset
        self.padding_idx: int | None = padding_idx

    def forward(
        self, input: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._outputs((input, offsets, per_sample_weights))[self.tables[0].feature_names[0]]

    def _batch(self, arguments: Any, features: Sequence[Feature]) -> Batch:
        input, offsets, weights = _three(arguments)
        check_ids(input, "input")
        if input.dim() == 2:
            if offsets is not None:
                raise InvalidArgumentError("input has two dimensions, so offsets must be None: each row is a bag")
        elif input.dim() != 1:
            raise InvalidArgumentError(f"input has shape {tuple(input.shape)}; it must have one or two dimensions")
        elif offsets is None:
            raise InvalidArgumentError("input has one dimension, so offsets must be given: where each bag begins")
        else:
            check_ids(offsets, "offsets")
        if weights is not None and self.mode != "sum":
            raise InvalidArgumentError(f"per_sample_weights need mode='sum'; this module has mode={self.mode!r}")
        if weights is not None and weights.shape != input.shape:
            raise InvalidArgumentError(
                f"per_sample_weights has shape {tuple(weights.shape)}; it must be that of input, {tuple(input.shape)}"
            )
        batch = Batch([], [], [], [], ends_are_given=self.include_last_offset)
        _add(batch, self.tables, features[0], check_ids(input, "input"), offsets, 0, weights)
        return batch


class Embedding(_Module):
    """torch.nn.Embedding over a table on servers: without num_embeddings, since a table has any ids from 0 to 2^63 - 1.

    The arguments are those of EmbeddingBag. New rows are tandem.init.Normal(stddev=0.01) unless `init` says otherwise, as in a
    job file; torch's are normal with a standard deviation of 1.
    """

    def __init__(
        self,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        name: str,
        client: Client,
        optimizer: Kind | None = None,
        init: Kind | None = None,
        update_mode: str = "async",
        reduction: str = "mean",
        **options: Any,
    ) -> None:
        _refuse(max_norm, scale_grad_by_freq, dtype)
        table = Table(
            name, embedding_dim, pooling=None, optimizer=optimizer, init=init, mode=update_mode, padding_idx=padding_idx, **options
        )
        super().__init__([table], client, reduction)
        if dtype is not None:
            self.to(dtype)
        self.embedding_dim: int = embedding_dim
        self.padding_idx: int | None = padding_idx

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._outputs(input)[self.tables[0].feature_names[0]]

    def _batch(self, arguments: Any, features: Sequence[Feature]) -> Batch:
        ids = check_ids(arguments, "input")
        return Batch([ids], [None], [0], [None])


def _three(arguments: Any) -> tuple[Any, Any, Any]:
    if isinstance(arguments, (tuple, list)):
        padded = [*arguments, None, None]
        return padded[0], padded[1], padded[2]
    return arguments, None, None


make_ddp_join_tables(_Module)
