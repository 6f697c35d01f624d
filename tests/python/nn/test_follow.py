# SPDX-License-Identifier: Apache-2.0
"""Tables that follow an optimizer of torch: each program is run with a table and with torch.nn.EmbeddingBag, and must give the same."""

import copy
import gc
import warnings
import weakref

import numpy as np
import pytest

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")

from bags import DIM, OFFSETS, RULES, Model, bag_of, batch, rows_of, twin_of  # noqa: E402


class Program(Model):
    """A model in training: `optimizer` trains both of its parts."""

    def __init__(self, bag, rule: str = "SGD", **options) -> None:
        super().__init__(bag)
        self.norms: list[float] = []
        self.optimizer = RULES[rule][1]([{"params": self.dense.parameters()}, {"params": self.bag.parameters()}], lr=0.1, **options)

    def loss(self, number: int, factor: float = 1.0):
        return self(batch(number)).square().mean() * factor


# The programs. Each is torch's protocol for something.


def plain(m: Program) -> None:
    for step in range(4):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        m.optimizer.step()


def accumulation(m: Program) -> None:
    for step in range(3):
        m.optimizer.zero_grad()
        for micro in range(3):
            m.loss(3 * step + micro, 1 / 3).backward()
        m.optimizer.step()


def a_long_accumulation(m: Program) -> None:
    m.optimizer.zero_grad()
    for micro in range(40):
        m.loss(micro, 1 / 40).backward()
    m.optimizer.step()


def zero_grad_between_two_backwards(m: Program) -> None:
    for step in range(3):
        m.loss(step).backward()
        m.optimizer.zero_grad()
        m.loss(step + 10).backward()
        m.optimizer.step()
        m.optimizer.zero_grad()


def zero_grad_of_the_module(m: Program) -> None:
    for step in range(3):
        m.loss(step).backward()
        m.zero_grad()
        m.loss(step + 10).backward()
        m.optimizer.step()
        m.zero_grad()


def zero_grad_to_zeros(m: Program) -> None:
    for step in range(3):
        m.loss(step).backward()
        m.optimizer.zero_grad(set_to_none=False)
        m.loss(step + 10).backward()
        m.optimizer.step()
        m.optimizer.zero_grad(set_to_none=False)


def a_loss_of_another_optimizer(m: Program) -> None:
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(()))], lr=1.0)
    for step in range(3):
        m.loss(step).backward()
        other.zero_grad()
        m.loss(step + 10).backward()
        other.step()
        m.optimizer.step()
        m.optimizer.zero_grad()


def steps_without_gradients(m: Program) -> None:
    m.optimizer.step()
    plain(m)
    m.optimizer.zero_grad()
    m.optimizer.step()


def a_closure(m: Program) -> None:
    for step in range(3):

        def closure(step=step):
            m.optimizer.zero_grad()
            loss = m.loss(step)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 0.05)
            return loss

        m.optimizer.step(closure)


def a_schedule(m: Program) -> None:
    scheduler = torch.optim.lr_scheduler.LambdaLR(m.optimizer, lambda step: [0.5, 1.0, 0.25, 0.0, 0.125][step])
    for step in range(4):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        m.optimizer.step()
        scheduler.step()


def rates_of_groups(m: Program) -> None:
    for step in range(3):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        m.optimizer.param_groups[0]["lr"] *= 0.5
        m.optimizer.param_groups[1]["lr"] *= 0.25
        m.optimizer.step()


def clipping_of_the_norm(m: Program) -> None:
    for step in range(4):
        m.optimizer.zero_grad()
        m.loss(step, 10.0).backward()
        m.norms.append(float(torch.nn.utils.clip_grad_norm_(m.parameters(), [0.1, 2.0, 1e6, 0.5][step], [2.0, float("inf"), 1.0, 2.0][step])))
        m.optimizer.step()


def clipping_after_an_accumulation(m: Program) -> None:
    for step in range(2):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        m.norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in m.parameters()])))
        m.loss(step + 10).backward()
        m.norms.append(float(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)))
        m.optimizer.step()


def clipping_of_values(m: Program) -> None:
    for step in range(3):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        torch.nn.utils.clip_grad_value_(m.parameters(), 0.02)
        m.optimizer.step()


def gradients_changed_by_hand(m: Program) -> None:
    for step in range(3):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        for parameter in m.parameters():
            parameter.grad = parameter.grad * 0.5
        m.optimizer.step()


def a_grad_scaler(m: Program) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        m.optimizer.zero_grad()
        loss = m.loss(step, float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        if step == 3:
            scaler.unscale_(m.optimizer)
            m.norms.append(float(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.05)))
        scaler.step(m.optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0


def a_grad_scaler_of_a_fused_optimizer(m: Program) -> None:
    """The scaler leaves the division, and the skipping of a step, to the optimizer."""
    a_grad_scaler(m)
    assert m.optimizer.param_groups[0]["fused"]


a_grad_scaler_of_a_fused_optimizer.options = {"fused": True}


def a_grad_scaler_that_is_off(m: Program) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=False)
    for step in range(3):
        m.optimizer.zero_grad()
        scaler.scale(m.loss(step)).backward()
        scaler.step(m.optimizer)
        scaler.update()


def gradients_that_begin_as_zeros(m: Program) -> None:
    for step in range(3):
        for parameter in m.parameters():
            parameter.grad = torch.zeros_like(parameter)
        m.loss(step).backward()
        m.optimizer.step()


def a_compiled_step(m: Program) -> None:
    step_of_optimizer = torch.compile(lambda: m.optimizer.step(), backend="eager")
    for step in range(3):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        step_of_optimizer()


def freezing(m: Program) -> None:
    for step in range(6):
        m.bag.requires_grad_(step % 3 != 1)
        m.optimizer.zero_grad()
        m.loss(step).backward()
        m.optimizer.step()


def freezing_by_the_parent(m: Program) -> None:
    for step in range(4):
        m.requires_grad_(step % 2 == 0)
        m.dense.requires_grad_(True)
        m.optimizer.zero_grad()
        m.loss(step).backward()
        m.optimizer.step()


def freezing_each_parameter(m: Program) -> None:
    for parameter in m.bag.parameters():
        parameter.requires_grad = False
    plain(m)


def a_graph_that_is_kept(m: Program) -> None:
    for step in range(2):
        m.optimizer.zero_grad()
        loss = m.loss(step)
        loss.backward(retain_graph=True)
        loss.backward()
        m.optimizer.step()


def a_pass_that_raises(m: Program) -> None:
    m.optimizer.zero_grad()
    m.loss(1).backward()
    out = m(batch(2))
    out.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()
    m.optimizer.step()


def gradients_by_autograd_grad_alone(m: Program) -> None:
    m.optimizer.zero_grad()
    torch.autograd.grad(m.loss(1), list(m.dense.parameters()))
    m.loss(2).backward()
    m.optimizer.step()


def gradients_by_autograd_grad_of_all_parameters(m: Program) -> None:
    m.optimizer.zero_grad()
    gradients = torch.autograd.grad(m.loss(1), list(m.parameters()), allow_unused=True)
    assert all(gradient is not None for gradient in gradients[-2:])
    m.loss(2).backward()
    m.optimizer.step()


def a_compiled_model(m: Program) -> None:
    compiled = torch.compile(m, backend="aot_eager", fullgraph=True)
    for step in range(4):
        m.optimizer.zero_grad()
        for micro in range(2):
            compiled(batch(2 * step + micro)).square().mean().backward()
        m.norms.append(float(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)))
        m.optimizer.step()


def a_model_that_is_compiled_while_gradients_wait(m: Program) -> None:
    compiled = torch.compile(m, backend="aot_eager")
    clip = torch.compile(lambda: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.05), backend="aot_eager")
    for step in range(2):
        m.optimizer.zero_grad()
        m.loss(step).backward()
        compiled(batch(step + 10)).square().mean().backward()
        m.norms.append(float(clip()))
        m.optimizer.step()


PROGRAMS = [
    plain, accumulation, a_long_accumulation, zero_grad_between_two_backwards, zero_grad_of_the_module, zero_grad_to_zeros,
    a_loss_of_another_optimizer, steps_without_gradients, a_closure, a_schedule, rates_of_groups, clipping_of_the_norm,
    clipping_after_an_accumulation, clipping_of_values, gradients_changed_by_hand, a_grad_scaler,
    a_grad_scaler_of_a_fused_optimizer, a_grad_scaler_that_is_off, gradients_that_begin_as_zeros, a_compiled_step, freezing,
    freezing_by_the_parent, freezing_each_parameter, a_graph_that_is_kept, a_pass_that_raises, gradients_by_autograd_grad_alone,
    gradients_by_autograd_grad_of_all_parameters, a_compiled_model,
    a_model_that_is_compiled_while_gradients_wait,
]


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_gives_what_it_gives_with_torch(program, rule):
    with tandem.local(servers=2, timeout=20) as client:
        bag = bag_of(client, rule=rule, update_mode="sync")
        options = getattr(program, "options", {})
        reference = Program(twin_of(client), rule, **options)
        model = Program(bag, rule, **options)
        bag.follow(model.optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            program(reference)
            program(model)
        bag.flush()
        np.testing.assert_allclose(model.norms, reference.norms, rtol=1e-4)
        np.testing.assert_allclose(rows_of(client), reference.bag.weight.detach().numpy(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model.dense.weight, reference.dense.weight, rtol=1e-4, atol=1e-6)


class TestOptimizers:
    def test_parameters_that_the_optimizer_lacks_are_added_and_its_state_does_not_show_them(self, client):
        bag, dense = bag_of(client), torch.nn.Linear(DIM, 1)
        optimizer = torch.optim.SGD([{"params": [dense.weight]}, {"params": [dense.bias], "lr": 0.2}], lr=0.1, momentum=0.9)
        before = copy.deepcopy(optimizer.state_dict()["param_groups"])
        bag.follow(optimizer)
        dense(bag(batch(0), OFFSETS)).sum().backward()
        optimizer.step()
        assert client.step == 1
        state = optimizer.state_dict()
        assert len(state["state"]) == 2 and [len(g["params"]) for g in state["param_groups"]] == [1, 1] == [len(g["params"]) for g in before]
        optimizer.load_state_dict(copy.deepcopy(state))
        other = torch.optim.SGD([{"params": [dense.weight]}, {"params": [dense.bias], "lr": 0.2}], lr=0.1, momentum=0.9)
        other.load_state_dict(state)  # of a program without tables
        torch.testing.assert_close(other.state[dense.bias]["momentum_buffer"], optimizer.state[dense.bias]["momentum_buffer"])
        first = rows_of(client)
        dense(bag(batch(0), OFFSETS)).sum().backward()
        optimizer.step()
        bag.flush()
        assert client.step == 2 and np.any(rows_of(client) != first)

    def test_modules_of_one_client_that_follow_one_optimizer_share_a_push(self, client):
        bags = [bag_of(client, f"t{i}") for i in range(3)]
        dense = torch.nn.Linear(DIM, 1)
        optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
        for bag in bags:
            bag.follow(optimizer)
        for _ in range(2):
            dense(sum(bag(batch(0), OFFSETS) for bag in bags)).sum().backward()
        optimizer.step()
        bags[0].flush()
        assert client.step == 1 and client.stats("t2")["pushes"] == client.num_servers

    def test_two_modules_of_one_table_add_their_gradients(self, client):
        bags = [bag_of(client), bag_of(client)]
        reference = twin_of(client)
        optimizers = [torch.optim.SGD([p for bag in bags for p in bag.parameters()], lr=0.1), torch.optim.SGD(reference.parameters(), lr=0.1)]
        for bag in bags:
            bag.follow(optimizers[0])
        (bags[0](batch(0), OFFSETS) + 2 * bags[1](batch(1), OFFSETS)).square().sum().backward()
        (reference(batch(0), OFFSETS) + 2 * reference(batch(1), OFFSETS)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        bags[0].flush()
        np.testing.assert_allclose(rows_of(client), reference.weight.detach().numpy(), rtol=1e-4, atol=1e-6)

    def test_each_optimizer_of_a_client_pushes_its_own_tables(self, client):
        bags = [bag_of(client, name, update_mode="sync") for name in ("a", "b")]
        references = [twin_of(client, name) for name in ("a", "b")]
        mine = [torch.optim.SGD(bag.parameters(), lr=0.1) for bag in bags]
        theirs = [torch.optim.SGD(bag.parameters(), lr=0.1) for bag in references]
        for bag, optimizer in zip(bags, mine):
            bag.follow(optimizer)
        for modules, optimizers in ((bags, mine), (references, theirs)):
            for step in range(4):
                (modules[0](batch(step), OFFSETS) * modules[1](batch(step + 9), OFFSETS)).sum().backward()
                optimizers[step % 2].step()
                optimizers[step % 2].zero_grad()
        bags[0].flush()
        assert client.step == 4
        for name, reference in zip(("a", "b"), references):
            np.testing.assert_allclose(rows_of(client, name), reference.weight.detach().numpy(), rtol=1e-4, atol=1e-6)

    def test_tables_of_a_collection_may_be_frozen_and_have_rates_of_their_own(self, client):
        emb = tandem.nn.EmbeddingCollection(
            [tandem.nn.Table(n, DIM, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros(), mode="sync") for n in "abc"], client
        )
        a, b, c = emb.parameters()
        optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b, c], "lr": 0.5}], lr=0.1)
        emb.follow(optimizer, base_lr=0.1)
        c.requires_grad = False
        sum(out.sum() for out in emb({n: torch.tensor([1]) for n in "abc"}).values()).backward()
        assert c.grad is None and a.grad.shape == (1, DIM)
        optimizer.step()
        emb.flush()
        assert [float(client.pull(n, [1], read_only=True)[0][0, 0]) for n in "abc"] == [-1.0, -5.0, 0.0]

    @pytest.mark.parametrize("has_tables", [True, False], ids=["of all parameters", "of the dense part"])
    def test_a_table_follows_the_last_optimizer(self, client, has_tables):
        bag, dense = bag_of(client), torch.nn.Linear(DIM, 1)
        reference = twin_of(client)
        optimizers = []
        for rate in (0.1, 0.2):  # as two runs of Trainer.fit() make them
            optimizers.append(torch.optim.SGD([*dense.parameters(), *(bag.parameters() if has_tables else [])], lr=rate))
            theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
            bag.follow(optimizers[-1])
            for step in range(2):
                for module, optimizer in ((bag, optimizers[-1]), (reference, theirs)):
                    optimizer.zero_grad()
                    module(batch(step), OFFSETS).square().sum().backward()
                    optimizer.step()
        bag.flush()
        assert client.step == 4
        np.testing.assert_allclose(rows_of(client), reference.weight.detach().numpy(), rtol=1e-4, atol=1e-6)
        with pytest.warns(UserWarning, match="'t'.* follow another optimizer now"):
            optimizers[0].step()
        assert client.step == 4 and len(optimizers[0].param_groups[0]["params"]) == (3 if has_tables else 2)

    @pytest.mark.parametrize(
        "make",
        [
            lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6),
            lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3),
            lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6),
        ],
        ids=["OneCycleLR", "LinearLR", "CosineAnnealingLR"],
    )
    def test_a_table_trains_the_same_if_the_scheduler_is_made_before_or_after_follow(self, make):
        found = []
        for follow_first in (True, False):
            with tandem.local(timeout=20) as client:
                bag = bag_of(client)
                optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
                if follow_first:
                    bag.follow(optimizer)
                scheduler = make(optimizer)
                if not follow_first:
                    bag.follow(optimizer)
                for step in range(4):
                    optimizer.zero_grad()
                    bag(batch(step), OFFSETS).square().sum().backward()
                    optimizer.step()
                    scheduler.step()
                bag.flush()
                found.append(rows_of(client))
        np.testing.assert_array_equal(*found)

    def test_optimizers_and_modules_end_with_their_last_reference(self, client):
        ends = []
        for _ in range(2):
            bag, dense = bag_of(client), torch.nn.Linear(DIM, 1)
            optimizer = torch.optim.Adam(dense.parameters())
            bag.follow(optimizer)
            dense(bag(batch(0), OFFSETS)).sum().backward()
            optimizer.step()
            ends += [weakref.ref(each) for each in (bag, dense.weight, optimizer)]
        bag.flush()
        del bag, dense, optimizer
        gc.collect()
        assert [end() for end in ends] == [None] * 6

    def test_a_copy_is_frozen_by_itself_and_follows_nothing(self, client):
        bag = bag_of(client)
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
        bag.follow(optimizer)
        target = copy.deepcopy(torch.nn.Sequential(bag)).requires_grad_(False)[0]
        assert next(bag.parameters()).requires_grad and not target(batch(0), OFFSETS).requires_grad
        bag(batch(0), OFFSETS).sum().backward()
        optimizer.step()
        bag.flush()
        assert client.step == 1
        torch.testing.assert_close(target(batch(0), OFFSETS), bag(batch(0), OFFSETS))

    def test_loading_a_checkpoint_drops_gradients_that_wait(self, client, tmp_path):
        bag = bag_of(client)
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
        bag.follow(optimizer)
        path, first = client.save_checkpoint(tmp_path), rows_of(client)
        bag(batch(0), OFFSETS).sum().backward()
        client.load_checkpoint(path)
        optimizer.step()
        bag.flush()
        np.testing.assert_array_equal(rows_of(client), first)


class TestErrors:
    def test_misuse_of_follow_says_what_to_do(self, client):
        bag = bag_of(client)
        with pytest.raises(ValueError, match="it must be an optimizer of torch.optim"):
            bag.follow(bag)
        with pytest.raises(ValueError, match="cannot follow LBFGS"):
            bag.follow(torch.optim.LBFGS(bag.parameters()))
        with pytest.raises(ValueError, match="negate the loss"):
            bag.follow(torch.optim.SGD(bag.parameters(), lr=0.1, maximize=True))
        with pytest.raises(ValueError, match="base_lr="):
            bag.follow(torch.optim.SGD(bag.parameters(), lr=0.0))
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
        bag.follow(optimizer)
        with pytest.raises(ValueError, match="follows? .*call follow.. once"):
            bag.follow(optimizer)

    def test_a_gradient_of_another_shape_is_refused(self, client):
        bag = bag_of(client)
        bag.follow(torch.optim.SGD(bag.parameters(), lr=0.1))
        bag(batch(0), OFFSETS).sum().backward()
        with pytest.raises(ValueError, match="the shape of the gradients that wait"):
            next(bag.parameters()).grad = torch.zeros(3, 3)

    def test_a_scaler_without_follow_raises_before_a_row_moves(self, client):
        bag, dense = bag_of(client), torch.nn.Linear(DIM, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        before = rows_of(client)
        with pytest.raises(tandem.errors.FailedPreconditionError, match="by 65536 .*call follow"):
            scaler.scale(dense(bag(batch(0), OFFSETS)).sum()).backward()
        bag.flush()
        np.testing.assert_array_equal(rows_of(client), before)

    def test_accumulation_without_follow_warns(self, client):
        bag, dense = bag_of(client), torch.nn.Linear(DIM, 1)
        optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
        for _ in range(2):
            dense(bag(batch(0), OFFSETS)).sum().backward()
        with pytest.warns(UserWarning, match="2 backward passes have each pushed .*follow"):
            optimizer.step()

    def test_a_module_that_does_not_follow_beside_one_that_does_warns(self, client):
        one, other = bag_of(client, "one"), bag_of(client, "other")
        one.follow(torch.optim.SGD(one.parameters(), lr=0.1))
        with pytest.warns(UserWarning, match="'other', which follow no optimizer"):
            (one(batch(0), OFFSETS) + other(batch(0), OFFSETS)).sum().backward()

    def test_a_step_that_never_came_warns_when_the_client_closes(self):
        client = tandem.local(timeout=20)
        bag = bag_of(client)
        bag.follow(torch.optim.SGD(bag.parameters(), lr=0.1))
        bag(batch(0), OFFSETS).sum().backward()
        with pytest.warns(UserWarning, match="gradients of tables .t. were not pushed"):
            client.close()

    def test_many_passes_without_a_step_warn(self, client, monkeypatch):
        monkeypatch.setattr("tandem.nn.follower._MANY_PASSES", 3)
        bag = bag_of(client)
        bag.follow(torch.optim.SGD(bag.parameters(), lr=0.1))
        for _ in range(2):
            bag(batch(0), OFFSETS).sum().backward()
        with pytest.warns(UserWarning, match="step.. of the optimizer that they follow was not called"):
            bag(batch(0), OFFSETS).sum().backward()
        bag.zero_grad()

    def test_a_skipped_step_is_a_step_of_the_table(self):
        with tandem.local(timeout=20) as client:
            bag = bag_of(client, update_mode="sync")
            optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
            bag.follow(optimizer)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            for step in range(3):
                optimizer.zero_grad()
                scaler.scale(bag(batch(step), OFFSETS).sum() * (float("nan") if step == 1 else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
            assert client.step == 3 and bag.skipped_steps == 1


class TestDtypes:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("how", ["to", "argument"])
    def test_outputs_have_the_dtype_of_the_module(self, client, dtype, how):
        bag = bag_of(client, **({"dtype": dtype} if how == "argument" else {}))
        dense = torch.nn.Linear(DIM, 1).to(dtype)
        model = torch.nn.ModuleList([bag, dense]).to(dtype)
        reference = twin_of(client)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bag.follow(optimizer)
        out = bag(batch(0), OFFSETS)
        assert out.dtype == dtype and bag.eval()(batch(0), OFFSETS).dtype == dtype
        torch.testing.assert_close(out, reference(batch(0), OFFSETS).to(dtype))
        dense(out).sum().backward()
        (reference(batch(0), OFFSETS) * dense.weight.detach().float()).sum().backward()
        optimizer.step()
        bag.flush()
        expected = reference.weight - 0.1 * reference.weight.grad
        torch.testing.assert_close(torch.from_numpy(rows_of(client)), expected.detach(), rtol=1e-2, atol=1e-2)

    def test_double_of_a_model_with_a_collection_stacks_doubles(self, client):
        emb = tandem.nn.EmbeddingCollection(
            [tandem.nn.Table(n, DIM, optimizer=tandem.optim.SGD(lr=1.0)) for n in "ab"], client
        ).double()
        ids = {n: torch.tensor([1, 2]) for n in "ab"}
        assert emb.stack(ids).dtype == torch.float64 and {o.dtype for o in emb(ids).values()} == {torch.float64}


# The gradients of three lookups, one of which was looked at before, are one push with the occurrences of all three.
def test_occurrences_of_accumulated_gradients_add_up_under_lfu(client):
    bag = bag_of(client, eviction=tandem.eviction.LFU(), byte_budget=256 << 10)
    optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
    bag.follow(optimizer)

    def use(ids):
        bag(torch.from_numpy(ids), torch.arange(len(ids))).sum().backward()

    hot, rare = np.arange(40).reshape(2, 20)
    optimizer.zero_grad()
    use(np.concatenate([np.repeat(hot, 8), rare]))
    assert next(bag.parameters()).grad is not None
    use(np.repeat(hot, 4))
    use(np.repeat(hot, 8))
    optimizer.step()
    before = client.pull("t", hot, read_only=True)[0]
    for _ in range(10):
        optimizer.zero_grad()
        use(np.arange(1000, 21000))
        optimizer.step()
    assert client.stats("t")["evicted_rows"] > 10000
    np.testing.assert_array_equal(client.pull("t", hot, read_only=True)[0], before)
