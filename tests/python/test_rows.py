# SPDX-License-Identifier: Apache-2.0
"""Rows that are assigned, saved, loaded and exported."""

import pathlib

import numpy as np
import pytest

import tandem
from tandem import errors


def make(client: tandem.Client, name: str = "t", dim: int = 3, **options) -> None:
    options = {"optimizer": tandem.optim.Adagrad(lr=1.0), "init": tandem.init.Constant(1.0)} | options
    client.create_table(name, dim, **options)


class TestAssign:
    def test_assigned_rows_replace_those_that_exist_and_create_others(self, client):
        make(client)
        client.pull("t", [1, 2])
        rows = np.arange(9, dtype=np.float32).reshape(3, 3)
        client.assign("t", np.array([2, 5, 2**40]), rows)
        np.testing.assert_array_equal(client.pull("t", [2, 5, 2**40], read_only=True)[0], rows)
        assert np.all(client.pull("t", [1], read_only=True)[0] == 1.0)
        assert client.stats("t")["rows"] == 4

    def test_the_optimizer_state_of_assigned_rows_begins_anew(self, client):
        make(client)
        for _ in range(5):
            client.pull("t", [1])
            client.push("t", [1], np.ones((1, 3)))
        client.assign("t", [1], np.zeros((1, 3)))
        client.pull("t", [1])
        client.push("t", [1], np.ones((1, 3)))
        np.testing.assert_allclose(client.pull("t", [1])[0], -1.0, rtol=1e-6)  # the first step of Adagrad has the length lr

    def test_many_rows(self, client):
        make(client, dim=16)
        ids = np.random.default_rng(0).permutation(20000)
        rows = np.random.default_rng(1).standard_normal((20000, 16)).astype(np.float32)
        client.assign("t", ids, rows)
        np.testing.assert_array_equal(client.pull("t", ids, read_only=True)[0], rows)

    def test_a_table_of_another_client_is_found(self, client):
        make(client)
        client._dims.clear()
        client.assign("t", [1], np.zeros((1, 3)))
        assert np.all(client.pull("t", [1])[0] == 0.0)

    @pytest.mark.parametrize(
        "ids, rows, text",
        [
            ([1, 1], np.zeros((2, 3)), "contain 1 twice"),
            ([1, 2], np.zeros((2, 4)), r"shape \(2, 4\); it must be \(2, 3\)"),
            ([4], np.full((1, 3), np.nan), "row of id 4 .* NaN or infinite"),
            ([-4], np.zeros((1, 3)), "must not be negative"),
            ([0.5], np.zeros((1, 3)), "integers"),
        ],
    )
    def test_wrong_rows_are_refused_and_change_nothing(self, client, ids, rows, text):
        make(client)
        with pytest.raises(ValueError, match=text):
            client.assign("t", ids, rows)
        assert client.stats("t")["rows"] == 0

    def test_an_unknown_table_is_named(self, client):
        with pytest.raises(LookupError, match="no table 'u'"):
            client.assign("u", [1], np.zeros((1, 3)))


class TestScan:
    @pytest.mark.parametrize("block", [1, 100, 65536])
    def test_every_row_is_returned_once(self, client, block):
        make(client)
        ids = np.random.default_rng(0).integers(0, 2**63, 300, np.int64)
        rows = np.random.default_rng(1).standard_normal((300, 3)).astype(np.float32)
        client.assign("t", ids, rows)
        blocks = list(client.scan("t", block=block))
        assert all(len(i) == len(r) <= block and i.dtype == np.uint64 and r.dtype == np.float32 for i, r in blocks)
        found = {int(i): row for some_ids, some_rows in blocks for i, row in zip(some_ids, some_rows)}
        assert len(found) == sum(len(i) for i, _ in blocks) == 300
        for i, row in zip(ids, rows):
            np.testing.assert_array_equal(found[int(i)], row)

    def test_state_of_the_optimizer_comes_along(self, client):
        make(client)
        client.pull("t", [5])
        client.push("t", [5], np.full((1, 3), 2.0))
        [(ids, rows, state)] = client.scan("t", optimizer_state=True)
        assert ids.tolist() == [5] and state.tolist() == [[4.0] * 3]
        np.testing.assert_allclose(rows, 0.0, atol=1e-6)

    def test_an_empty_table_has_no_block_and_an_unknown_one_is_named(self, client):
        make(client)
        assert list(client.scan("t")) == []
        with pytest.raises(LookupError, match="no table 'u'"):
            client.scan("u")
        with pytest.raises(ValueError, match="block is 0"):
            client.scan("t", block=0)


class TestCheckpoints:
    def test_a_checkpoint_brings_rows_steps_and_optimizer_state_back(self, client, tmp_path):
        make(client)

        def step() -> None:
            client.pull("t", [1, 2, 3])
            client.push("t", [1, 2, 3], np.ones((3, 3)))

        step()
        step()
        path = client.save_checkpoint(tmp_path)
        assert pathlib.Path(path).name == "step-000000000002" and client.step == 2
        step()
        after_three = client.pull("t", [1, 2, 3])[0]
        client.pull("t", [9])
        assert client.load_checkpoint(tmp_path) == 2 and client.step == 2
        assert client.stats("t")["rows"] == 3
        step()
        np.testing.assert_array_equal(client.pull("t", [1, 2, 3])[0], after_three)

    def test_another_number_of_servers_loads_it(self, client, tmp_path):
        make(client)
        client.assign("t", np.arange(100), np.arange(300).reshape(100, 3).astype(np.float32))
        path = client.save_checkpoint(tmp_path, step=7)
        with tandem.local(servers=2, timeout=20) as other:
            make(other)
            # The steps are those of the client that saved, which has pushed nothing.
            assert other.load_checkpoint(path) == client.step == 0
            np.testing.assert_array_equal(other.pull("t", np.arange(100))[0], np.arange(300).reshape(100, 3))

    def test_sync_tables_continue_at_the_step_of_the_checkpoint(self, tmp_path):
        with tandem.local(servers=2, timeout=10) as client:
            make(client, mode="sync", num_workers=1)
            for _ in range(3):
                client.pull("t", [1])
                client.push("t", [1], np.ones((1, 3)))
            client.save_checkpoint(tmp_path)
        with tandem.local(servers=1, timeout=10) as client:
            make(client, mode="sync", num_workers=1)
            assert client.load_checkpoint(tmp_path) == 3
            client.pull("t", [1])
            client.push("t", [1], np.ones((1, 3)))
            assert client.step == 4

    def test_an_exported_table_has_the_rows(self, client, tmp_path):
        make(client)
        rows = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
        client.assign("t", np.arange(50), rows)
        path = client.save_checkpoint(tmp_path)
        files = tandem.export_checkpoint(path, tmp_path / "exported", optimizer_state=True)
        assert sorted(files) == ["t"] and len(files["t"]) == 3
        ids = np.load(tmp_path / "exported" / "t.ids.npy")
        np.testing.assert_array_equal(np.load(tmp_path / "exported" / "t.rows.npy"), rows[ids])
        tandem.export_checkpoint(path, tmp_path / "csv", format="csv")
        assert (tmp_path / "csv" / "t.csv").read_text().startswith("id,v0,v1,v2")
        with pytest.raises(ValueError, match="format is 'parquet'"):
            tandem.export_checkpoint(path, tmp_path / "x", format="parquet")

    def test_errors_name_the_path(self, client, tmp_path):
        make(client)
        with pytest.raises(LookupError, match="nothing"):
            client.load_checkpoint(tmp_path / "nothing")
        path = client.save_checkpoint(tmp_path)
        with tandem.local(timeout=10) as other:
            other.create_table("t", 5, tandem.optim.Adagrad(lr=1.0))
            with pytest.raises(errors.TandemError, match="dim"):
                other.load_checkpoint(path)
            assert np.all(np.isfinite(other.pull("t", [1])[0]))
        manifest = pathlib.Path(path) / "MANIFEST"
        manifest.write_text(manifest.read_text().replace("python", "pythom"))
        with pytest.raises(OSError, match="MANIFEST"):
            client.load_checkpoint(path)


class TestReadOnly:
    def test_arguments(self):
        with pytest.raises(ValueError, match="wire is 'int4'"):
            tandem.connect(servers=["127.0.0.1:1"], read_only=True, wire="int4")
        with pytest.raises(ValueError, match="read_only=True"):
            tandem.connect(servers=["127.0.0.1:1"], wire="int8")
        with pytest.raises(ValueError, match="rank is 2 of world_size 2"):
            tandem.connect(servers=["127.0.0.1:1"], rank=2, world_size=2)

    def test_a_read_only_client_refuses_changes(self, client):
        make(client)
        client._read_only = True
        for change in (
            lambda: make(client, "u"),
            lambda: client.create_dense("u", 3, tandem.optim.SGD(lr=1.0)),
            lambda: client.push("t", [1], np.ones((1, 3))),
            lambda: client.assign("t", [1], np.ones((1, 3))),
            lambda: client.set_mode("t", "sync"),
            lambda: client.flush("t"),
            lambda: client.save_checkpoint("/nowhere"),
            lambda: client.load_checkpoint("/nowhere"),
        ):
            with pytest.raises(errors.FailedPreconditionError, match="read-only"):
                change()
        client.pull("t", [1])
        assert client.stats("t")["rows"] == 0
        client._read_only = False


