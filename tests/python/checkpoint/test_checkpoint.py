# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables and dense parts together."""

import fractions
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from processes import DEADLINE_S, start_job, start_script, tandem_binary

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
from tandem.torch import checkpoint  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
DIM = 4
# Of processes that import torch.
TORCH_DEADLINE_S = 200.0


class Model(torch.nn.Module):
    def __init__(self, client: tandem.Client, dim: int = DIM) -> None:
        super().__init__()
        options = {"dim": dim, "optimizer": tandem.optim.Adagrad(lr=0.1), "num_workers": 1}
        self.emb = tandem.nn.EmbeddingCollection([tandem.nn.Table(name, **options) for name in ("user", "item")], client)
        torch.manual_seed(0)
        self.dense = torch.nn.Linear(2 * dim, 1)

    def forward(self, ids):
        out = self.emb({"user": ids, "item": ids + 7})
        return self.dense(torch.cat([out["user"], out["item"]], 1)).squeeze(1)


class Trained:
    """A model, its optimizer and servers of its own."""

    def __init__(self, servers: int = 2, dim: int = DIM) -> None:
        self.client = tandem.local(servers=servers, timeout=20)
        self.model = Model(self.client, dim)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.model.emb.follow(self.optimizer)

    def __enter__(self) -> "Trained":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def train(self, first: int, last: int) -> "list[float]":
        losses = []
        for step in range(first, last):
            ids = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            loss = (self.model(ids) - ids % 2).square().mean()
            loss.backward()
            self.optimizer.step()
            self.model.emb.flush()
            losses.append(loss.item())
        return losses

    def save(self, root, step: int, **options) -> str:
        return checkpoint.save(root, step, self.model, self.optimizer, self.client, **options)

    def load(self, path) -> "checkpoint.Loaded":
        return checkpoint.load(path, self.model, self.optimizer, self.client)


class MakesDirectory:
    """An object whose unpickling makes a directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def damage(path: str, name: str) -> None:
    """Changes one byte of a file of the checkpoint whose name begins with `name`."""
    (file,) = [f for f in pathlib.Path(path).iterdir() if f.name.startswith(name)][:1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


class TestSaveAndLoad:
    @pytest.mark.parametrize("servers", [1, 2, 3])
    def test_a_loaded_run_continues_with_the_same_bits_on_any_number_of_servers(self, tmp_path, servers):
        with Trained() as first:
            first.train(0, 5)
            path = first.save(tmp_path, 5, extra={"epoch": 1, "position": [3, 4]})
            expected = first.train(5, 9)
            rows = first.client.pull("user", np.arange(50), read_only=True)[0]
        with Trained(servers) as second:
            second.train(90, 93)  # is forgotten
            loaded = second.load(tmp_path)
            assert loaded == checkpoint.Loaded(5, path, {"epoch": 1, "position": [3, 4]})
            assert second.client.step == 5
            assert second.train(5, 9) == expected
            np.testing.assert_array_equal(second.client.pull("user", np.arange(50), read_only=True)[0], rows)

    def test_a_fresh_optimizer_gets_the_saved_state(self, tmp_path):
        with Trained() as first, Trained() as second:
            first.train(0, 3)
            first.save(tmp_path, 3)
            second.load(tmp_path)
            mine, theirs = first.optimizer.state_dict(), second.optimizer.state_dict()
            assert mine["state"].keys() == theirs["state"].keys() and len(mine["state"]) == 2
            for one, other in zip(mine["state"].values(), theirs["state"].values()):
                assert one["step"] == other["step"]
                torch.testing.assert_close(one["exp_avg"], other["exp_avg"])

    def test_an_earlier_checkpoint_of_the_step_is_replaced_and_old_ones_are_pruned(self, tmp_path):
        with Trained() as run:
            for step in (1, 2, 2, 3):
                run.train(step, step + 1)
                run.save(tmp_path, step, keep=2)
            assert sorted(os.listdir(tmp_path)) == ["step-000000000002", "step-000000000003"]
            assert run.load(tmp_path / "step-000000000002").step == 2
            assert run.client.step == 3  # the third push was the last one before this checkpoint

    def test_several_optimizers_or_none(self, tmp_path):
        with Trained() as run:
            one, two = torch.optim.SGD([run.model.dense.weight], lr=0.1), torch.optim.Adam([run.model.dense.bias], lr=0.1)
            checkpoint.save(tmp_path / "two", 1, run.model, [one, two], run.client)
            checkpoint.load(tmp_path / "two", run.model, [one, two], run.client)
            checkpoint.save(tmp_path / "none", 1, run.model, None, run.client)
            checkpoint.load(tmp_path / "none", run.model, None, run.client)
            with pytest.raises(ValueError, match="has 2 optimizers, and load.. was given 1"):
                checkpoint.load(tmp_path / "two", run.model, one, run.client)

    def test_the_command_line_lists_and_verifies_both_parts(self, tmp_path):
        with Trained() as run:
            run.train(0, 2)
            path = run.save(tmp_path, 2)

        def ckpt(*arguments: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run([tandem_binary(), "ckpt", *arguments], capture_output=True, text=True, timeout=DEADLINE_S)

        listed = json.loads(ckpt("ls", "--json", str(tmp_path)).stdout)
        assert listed[0]["model"] == "torch Model" and listed[0]["step"] == 2 and not listed[0]["time"].startswith("1970")
        names = {file["name"] for file in listed[0]["files"]}
        assert {"TORCH.json", ".metadata", "__0_0.distcp", "user.0-of-2.table"} <= names
        assert ckpt("verify", str(tmp_path)).returncode == 0
        [digest] = json.loads(ckpt("digest", "--json", str(tmp_path)).stdout)
        assert [file["file"] for file in digest["torch"]] == ["__0_0.distcp"] and len(digest["tables"]) == 2
        with Trained(servers=1) as again:
            again.load(path)
            again.save(tmp_path / "again", 2)
            again.train(2, 3)
            again.save(tmp_path / "later", 3)
        [same] = json.loads(ckpt("digest", "--json", str(tmp_path / "again")).stdout)
        [later] = json.loads(ckpt("digest", "--json", str(tmp_path / "later")).stdout)
        assert same["torch"] == digest["torch"] and same["tables"] == digest["tables"]
        assert later["torch"][0]["digest"] != digest["torch"][0]["digest"]
        damage(path, "__0_0")
        verified = ckpt("verify", str(tmp_path))
        assert verified.returncode != 0 and "__0_0.distcp is damaged" in verified.stderr


def sync_model(client: tandem.Client) -> "tandem.nn.EmbeddingCollection":
    table = tandem.nn.Table("t", dim=DIM, optimizer=tandem.optim.SGD(lr=0.5), mode="sync", num_workers=1)
    return tandem.nn.EmbeddingCollection([table], client)


def rows_of(client: tandem.Client, table: str = "user") -> np.ndarray:
    return client.pull(table, np.arange(60), read_only=True)[0]


class TestAfterLoad:
    @pytest.mark.parametrize("step", [1, 3, 17])
    def test_tables_in_sync_mode_go_on_whatever_number_the_checkpoint_has(self, tmp_path, step):
        """The number may be an epoch, and a step of the program may have several pushes."""

        def push(emb: "tandem.nn.EmbeddingCollection") -> None:
            emb({"t": torch.arange(5)})["t"].sum().backward()
            emb.flush()

        with tandem.local(timeout=5) as client:
            emb = sync_model(client)
            for _ in range(3):
                push(emb)
            checkpoint.save(tmp_path / "both", step, emb, None, client)
            client.save_checkpoint(tmp_path / "tables", step)
            push(emb)
            expected = rows_of(client, "t")
        with tandem.local(timeout=5) as client:
            emb = sync_model(client)
            assert checkpoint.load(tmp_path / "both", emb, None, client).step == step and client.step == 3
            push(emb)
            np.testing.assert_array_equal(rows_of(client, "t"), expected)
            assert client.load_checkpoint(tmp_path / "tables") == client.step == 3
            push(emb)
            np.testing.assert_array_equal(rows_of(client, "t"), expected)

    def test_gradients_that_were_not_pushed_are_dropped(self, tmp_path):
        with Trained() as run:
            run.train(0, 2)
            run.save(tmp_path, 2)
            saved = rows_of(run.client)
            run.model(torch.arange(20)).sum().backward()
            run.load(tmp_path)
            run.optimizer.step()
            run.model.emb.flush()
            np.testing.assert_array_equal(rows_of(run.client), saved)

    def test_rows_that_were_pulled_ahead_are_pulled_again(self, tmp_path):
        with Trained() as run:
            run.train(0, 2)
            run.save(tmp_path, 2)
            expected = [run.model.emb({"user": torch.arange(i, i + 9), "item": torch.arange(9)})["user"] for i in range(6)]
            run.train(2, 9)
            batches = [{"sparse": {"user": torch.arange(i, i + 9), "item": torch.arange(9)}} for i in range(6)]
            loader = tandem.data.Prefetch(batches, run.model.emb, depth=2, start=0)
            for i, batch in enumerate(loader):
                if i == 1:
                    run.load(tmp_path)  # batches 2 and 3 may have been pulled
                rows = run.model.emb(batch["sparse"])["user"]
                if i >= 1:
                    assert torch.equal(rows, expected[i]), i

    def test_gradients_that_a_cache_has_deferred_are_dropped_on_the_other_workers_too(self, servers, tmp_path):
        def connect(rank: int) -> tandem.Client:
            client = tandem.connect(servers=servers.addresses, rank=rank, world_size=2, timeout=20)
            client.create_table("t", DIM, tandem.optim.SGD(lr=1.0), mode="bounded:100", num_workers=2)
            return client

        def push(client: tandem.Client) -> None:
            rows, version = client.pull("t", np.arange(10))
            client.push("t", np.arange(10), np.ones_like(rows), version=version)

        with connect(0) as first, connect(1) as second:
            push(second)
            first.save_checkpoint(tmp_path)
            saved = rows_of(first, "t")
            second.set_cache("t", 1 << 20, max_uses=100, push_bound=50)
            for _ in range(3):
                push(second)
            np.testing.assert_array_equal(rows_of(first, "t"), saved)  # the cache has deferred all three
            first.load_checkpoint(tmp_path)
            second.resume_from(1)
            second.push_deferred()
            np.testing.assert_array_equal(rows_of(first, "t"), saved)

    def test_checkpoints_of_the_tables_alone_are_left_out(self, tmp_path):
        with Trained() as run:
            older = run.save(tmp_path, 1)
            run.train(0, 2)
            run.client.save_checkpoint(tmp_path, 2)
            assert checkpoint.latest(tmp_path) == older
            assert run.load(tmp_path).path == older
            assert len(os.listdir(tmp_path)) == 2


class TestDamage:
    @pytest.mark.parametrize("name", ["__0_0", ".metadata", "TORCH", "MANIFEST", "user.1-of-2"])
    def test_a_damaged_checkpoint_is_named_and_stepped_past(self, tmp_path, name):
        with Trained() as run:
            run.train(0, 2)
            older = run.save(tmp_path, 2)
            run.train(2, 4)
            damage(run.save(tmp_path, 4), name)
            if not name.startswith("user"):
                with pytest.warns(UserWarning, match="step-000000000004 is damaged, and step-000000000002 is used"):
                    assert checkpoint.latest(tmp_path) == older
            with pytest.warns(UserWarning, match="step-000000000004 is damaged, and step-000000000002 is used"):
                assert run.load(tmp_path).step == 2
            assert sorted(os.listdir(tmp_path)) == ["damaged-step-000000000004", "step-000000000002"]

    def test_a_damaged_checkpoint_that_is_asked_for_is_refused(self, tmp_path):
        with Trained() as run:
            run.train(0, 2)
            path = run.save(tmp_path, 2)
            before = run.model.dense.weight.detach().clone()
            damage(path, "__0_0")
            run.train(2, 3)
            changed = run.model.dense.weight.detach().clone()
            assert not torch.equal(before, changed)
            with pytest.raises(tandem.errors.DataLossError, match="__0_0.distcp is damaged"):
                run.load(path)
            with pytest.raises(tandem.errors.DataLossError, match="all 1 checkpoints below .* are damaged"):
                run.load(tmp_path)
            with pytest.raises(tandem.errors.DataLossError, match="all 1 checkpoints"):
                checkpoint.latest(tmp_path)
            assert torch.equal(run.model.dense.weight, changed) and os.listdir(tmp_path) == ["step-000000000002"]

    def test_a_missing_or_short_file_is_damage(self, tmp_path):
        with Trained() as run:
            path = pathlib.Path(run.save(tmp_path, 2))
            (path / "__0_0.distcp").unlink()
            with pytest.raises(tandem.errors.DataLossError, match="__0_0.distcp"):
                run.load(path)
            path = pathlib.Path(run.save(tmp_path, 2))
            os.truncate(path / "item.0-of-2.table", 10)
            with pytest.raises(tandem.errors.DataLossError, match="item.0-of-2.table"):
                run.load(path)

    def test_there_is_none(self, tmp_path):
        with Trained() as run:
            assert checkpoint.latest(tmp_path) is None and checkpoint.latest(tmp_path / "not there") is None
            with pytest.raises(tandem.errors.NotFoundError, match="no checkpoint below"):
                run.load(tmp_path)

    def test_models_that_do_not_fit_are_refused(self, tmp_path):
        with Trained() as run:
            run.save(tmp_path / "both", 1)
            run.client.save_checkpoint(tmp_path / "tables", 1)
            with pytest.raises(ValueError, match="has no PyTorch part"):
                run.load(tmp_path / "tables")
            run.client.load_checkpoint(tmp_path / "both")  # the tables alone
        with Trained(dim=8) as other, pytest.raises(ValueError, match="dim"):
            other.load(tmp_path / "both")

    def test_values_that_are_not_plain_are_loaded_only_if_the_caller_trusts_them(self, tmp_path):
        with Trained() as run:
            run.optimizer.param_groups[0]["ratio"] = fractions.Fraction(1, 3)
            run.train(0, 2)
            run.save(tmp_path, 2)
            run.optimizer.param_groups[0]["ratio"] = fractions.Fraction(1, 2)
            with pytest.raises(tandem.errors.FailedPreconditionError, match=r"ratio' .*neither .* plain value: it names fractions.Fraction; .*weights_only=False"):
                run.load(tmp_path)
            assert run.optimizer.param_groups[0]["ratio"] == fractions.Fraction(1, 2)
            checkpoint.load(tmp_path, run.model, run.optimizer, run.client, weights_only=False)
            assert run.optimizer.param_groups[0]["ratio"] == fractions.Fraction(1, 3)

    def test_code_that_a_checkpoint_names_does_not_run(self, tmp_path):
        with Trained() as run:
            saved = run.save(tmp_path / "good", 1)
            changed = tandem._core.begin_checkpoint(str(tmp_path / "bad"), 1)
            shutil.copytree(saved, changed, dirs_exist_ok=True, ignore=shutil.ignore_patterns("MANIFEST"))
            (pathlib.Path(changed) / ".metadata").write_bytes(pickle.dumps(MakesDirectory(str(tmp_path / "made"))))
            tandem._core.commit_checkpoint(changed, json.dumps({"step": "1"}), [])
            with pytest.raises(tandem.errors.FailedPreconditionError, match=r"metadata is not loaded: it names posix.mkdir.*weights_only=False"):
                run.load(tmp_path / "bad")
            assert not (tmp_path / "made").exists()

    def test_arguments(self, tmp_path):
        with Trained() as run:
            with pytest.raises(ValueError, match="step is -1"):
                run.save(tmp_path, -1)
            with pytest.raises(ValueError, match="keep is 0"):
                run.save(tmp_path, 1, keep=0)
            with pytest.raises(TypeError):
                run.save(tmp_path, 1, extra={"x": object()})
            assert checkpoint.latest(tmp_path) is None
            run.save(tmp_path, 1)
            run.client._world_size = 2
            with pytest.raises(tandem.errors.FailedPreconditionError, match="init_process_group"):
                run.save(tmp_path, 1)


JOB = (HERE / "job.py").read_text()


class TestJobs:
    @pytest.mark.parametrize("ranks, servers", [(2, 1), (1, 3)])
    def test_ranks_and_servers_may_change_between_save_and_load(self, tmp_path, ranks, servers):
        root = str(tmp_path / "run")
        with start_job(tmp_path, JOB, "--ps", "2", "--nproc-per-node", "2", ROOT=root, STAGE="save", OMP_NUM_THREADS="1") as job:
            assert job.wait(TORCH_DEADLINE_S) == 0, job.output
        with start_job(
            tmp_path, JOB, "--ps", str(servers), "--nproc-per-node", str(ranks), ROOT=root, STAGE="load", OMP_NUM_THREADS="1"
        ) as job:
            assert job.wait(TORCH_DEADLINE_S) == 0, job.output
            assert job.output.count("the same as saved") == ranks, job.output

    def test_an_error_of_one_rank_is_raised_on_all_and_leaves_the_older_checkpoint(self, tmp_path):
        root = str(tmp_path / "run")
        with start_job(tmp_path, JOB, "--ps", "1", "--nproc-per-node", "2", ROOT=root, STAGE="fail", OMP_NUM_THREADS="1") as job:
            assert job.wait(TORCH_DEADLINE_S) == 0, job.output
            assert job.output.count("failed as expected") == 2, job.output
        assert checkpoint.latest(root).endswith("step-000000000010")

    @pytest.mark.parametrize("where", ["after the tables", "after the dense part"])
    def test_a_process_killed_while_it_saves_leaves_the_older_checkpoint(self, tmp_path, where):
        root = tmp_path / "run"
        script = (HERE / "killed.py").read_text()
        with start_script(tmp_path, script, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]), ROOT=str(root), WHERE=where) as process:
            assert process.wait(TORCH_DEADLINE_S) == -signal.SIGKILL, process.output
        assert sorted(os.listdir(root)) == ["step-000000000001", "unfinished-step-000000000002"]
        assert len(os.listdir(root / "unfinished-step-000000000002")) >= 1
        with Trained() as run:
            loaded = run.load(root)
            assert loaded.step == 1 and loaded.path == str(root / "step-000000000001")
            run.save(root, 2)
        assert sorted(os.listdir(root)) == ["step-000000000001", "step-000000000002"]
