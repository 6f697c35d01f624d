# SPDX-License-Identifier: Apache-2.0
"""Pulls and pushes, compared with a dictionary of rows."""

import asyncio
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

import tandem
from tandem import errors


def make(client: tandem.Client, name: str = "user", dim: int = 4, mode: str = "async", lr: float = 0.5) -> None:
    client.create_table(name, dim=dim, optimizer=tandem.optim.SGD(lr=lr), init=tandem.init.Constant(1.0), mode=mode)


class TestRows:
    def test_new_rows_have_their_initial_value(self, client):
        make(client)
        rows, version = client.pull("user", [7, 8, 7])
        assert rows.dtype == np.float32 and rows.shape == (3, 4)
        assert np.all(rows == 1.0)
        assert len(version) == client.num_servers

    def test_pushes_do_what_a_dictionary_does(self, client):
        make(client)
        random = np.random.default_rng(1)
        model: dict[int, np.ndarray] = {}
        for _ in range(50):
            ids = random.integers(0, 1 << 40, size=20) % 97
            rows, version = client.pull("user", ids)
            for i, row in zip(ids, rows):
                np.testing.assert_allclose(row, model.get(int(i), np.ones(4, np.float32)), rtol=1e-4, atol=1e-4)
            gradients = random.standard_normal((20, 4)).astype(np.float32)
            client.push("user", ids, gradients, version=version)
            for i, g in zip(ids, gradients):
                model[int(i)] = model.get(int(i), np.ones(4, np.float32)) - np.float32(0.5) * g

    def test_several_tables_in_one_call(self, client):
        make(client, "user")
        make(client, "item", dim=2)
        rows, version = client.pull({"user": [1], "item": [2, 3]})
        assert rows["user"].shape == (1, 4) and rows["item"].shape == (2, 2)
        client.push({"user": ([1], np.ones((1, 4))), "item": ([3], np.ones((1, 2)))}, version=version)
        rows, _ = client.pull({"user": [1], "item": [2, 3]})
        np.testing.assert_allclose(rows["user"], 0.5)
        np.testing.assert_allclose(rows["item"], [[1, 1], [0.5, 0.5]])
        assert client.step == 1

    def test_a_push_without_a_version_belongs_to_the_latest_pull(self, client):
        make(client)
        for _ in range(3):
            client.pull("user", range(12))
            client.push("user", range(12), np.ones((12, 4)))
        client.pull({"user": range(12)})
        client.push({"user": (range(12), np.ones((12, 4)))})
        client.pull_async("user", range(12)).result()
        client.push("user", range(12), np.ones((12, 4)))
        assert client.stats("user").get("staleness_mean", 0) == 0
        client.push("user", range(12), np.ones((12, 4)))
        assert client.stats("user")["staleness_max"] == 1

    def test_reading_an_old_future_again_does_not_set_the_latest_pull_back(self, client):
        make(client)
        old = client.pull_async("user", range(12))
        old.result()
        client.push("user", range(12), np.ones((12, 4)))
        client.pull("user", range(12))
        old.result()
        client.push("user", range(12), np.ones((12, 4)))
        assert client.stats("user").get("staleness_max", 0) == 0

    def test_arrays_that_cannot_be_written_are_read(self, client):
        make(client)
        ids = np.frombuffer(np.arange(3).tobytes(), np.int64)
        gradients = np.frombuffer(np.ones((3, 4), np.float32).tobytes(), np.float32).reshape(3, 4)
        assert not ids.flags.writeable and not gradients.flags.writeable
        offsets = np.array([0, 1, 3], np.uint32)
        offsets.flags.writeable = False
        client.pull("user", ids)
        client.push("user", ids, gradients)
        assert np.all(client.pull("user", ids, pooling="sum", offsets=offsets)[0] == [[0.5] * 4, [1.0] * 4])
        client.push("user", np.broadcast_to(np.int64(1), 3), np.broadcast_to(np.float32(0), (3, 4)))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
    def test_tensors_of_other_float_types_are_gradients(self, client, dtype):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
        make(client)
        client.pull("user", [1])
        client.push("user", torch.tensor([1]), torch.full((1, 4), 2.0, dtype=getattr(torch, dtype)))
        assert np.all(client.pull("user", [1])[0] == 0.0)
        with pytest.raises(ValueError, match=dtype):
            client.pull("user", [1], out=torch.zeros((1, 4), dtype=getattr(torch, dtype)))

    def test_a_refused_push_is_no_step(self, client):
        make(client, mode="sync")
        wrong, right = np.full((1, 4), np.nan, np.float32), np.ones((1, 4), np.float32)
        client.pull("user", [1])
        for push in (client.push, client.push_async):
            with pytest.raises(ValueError, match="(?i)nan|finite"):
                push("user", [1], wrong)
        assert client.step == 0
        client.push("user", [1], right)
        assert client.step == 1
        client.push_async("user", [1], right).result(timeout=20)
        assert client.step == 2
        np.testing.assert_allclose(client.pull("user", [1])[0], 0.0)  # does not wait for a push of an earlier step

    def test_out_receives_the_rows(self, client):
        make(client)
        out = np.zeros((2, 4), np.float32)
        rows, _ = client.pull("user", np.array([1, 2]), out=out)
        assert rows is out and np.all(out == 1.0)

    def test_ids_of_2_to_the_63_and_more_are_uint64(self, client):
        make(client)
        ids = np.array([0, 2**63, 2**64 - 1], np.uint64)
        client.pull("user", ids)
        client.push("user", ids, np.ones((3, 4), np.float32))
        assert np.all(client.pull("user", ids)[0] == 0.5)

    def test_a_push_to_rows_that_nobody_has_pulled_is_counted_and_dropped(self, client):
        make(client)
        client.push("user", [1, 2], np.ones((2, 4), np.float32))
        assert np.all(client.pull("user", [1, 2])[0] == 1.0)
        assert client.stats("user")["missing_rows"] == 2

    def test_pooling_sums_and_averages_bags(self, client):
        make(client)
        client.pull("user", [1])
        client.push("user", [1], np.full((1, 4), -2.0, np.float32))  # row 1 is now 2
        rows, _ = client.pull("user", [1, 2, 3], pooling="sum", offsets=[0, 2, 2, 3])
        np.testing.assert_allclose(rows, [[3.0] * 4, [0.0] * 4, [1.0] * 4])
        rows, _ = client.pull("user", [1, 2, 3], pooling="mean", offsets=[0, 2, 2, 3])
        np.testing.assert_allclose(rows, [[1.5] * 4, [0.0] * 4, [1.0] * 4])

    def test_a_read_only_pull_creates_no_row(self, client):
        make(client)
        assert np.all(client.pull("user", [5], read_only=True)[0] == 1.0)
        assert client.stats("user")["rows"] == 0
        client.pull("user", [5])
        assert client.stats("user")["rows"] == 1

    def test_a_dense_table_is_one_array(self, client):
        client.create_dense("bias", 3000, tandem.optim.SGD(lr=1.0))
        assert np.all(client.pull_dense("bias") == 0)
        client.push_dense("bias", np.arange(3000.0))
        np.testing.assert_array_equal(client.pull_dense("bias"), -np.arange(3000, dtype=np.float32))
        out = np.empty(3000, np.float32)
        assert client.pull_dense("bias", out=out) is out and out[-1] == -2999
        client.create_dense("aligned", 2048, tandem.optim.SGD(lr=1.0))
        client.push_dense("aligned", np.arange(2048.0))
        client._elements.clear()  # as if another client had created it
        np.testing.assert_array_equal(client.pull_dense("aligned"), -np.arange(2048, dtype=np.float32))

    def test_a_table_that_another_client_made_is_found(self, client):
        make(client)
        client._dims.clear()
        assert client.pull("user", [1])[0].shape == (1, 4)

    def test_statistics_count_rows(self, client):
        make(client)
        client.pull("user", np.arange(10))
        info = client.tables(hottest=1)["user"]
        assert info.dim == 4 and info.stats["rows"] == 10 and info.stats["pulled_rows"] == 10
        assert len(client.servers()) == client.num_servers

    def test_statistics_are_numbers_at_every_depth(self, client):
        make(client)
        for _ in range(100):
            client.pull("user", np.arange(10))
        client.push("user", np.arange(10), np.ones((10, 4)))

        def texts(value) -> list[str]:
            if isinstance(value, dict):
                return [t for v in value.values() for t in texts(v)]
            if isinstance(value, list):
                return [t for v in value for t in texts(v)]
            return [value] if isinstance(value, str) else []

        stats = client.tables(hottest=3)["user"].stats
        assert stats["hottest"] and not texts(stats), stats


class TestFutures:
    def test_a_future_has_the_result_of_the_call(self, client):
        make(client)
        pulls = [client.pull_async("user", [i]) for i in range(20)]
        for pull in pulls:
            rows, version = pull.result(timeout=10)
            assert np.all(rows == 1.0) and pull.done()
        assert client.push_async("user", [1], np.ones((1, 4))).result(timeout=10) is None

    def test_callbacks_run_once(self, client):
        make(client)
        called = threading.Event()
        count = []
        future = client.pull_async("user", [1])
        future.add_done_callback(lambda f: (count.append(f), called.set()))
        assert called.wait(10)
        future.result()
        late = threading.Event()
        future.add_done_callback(lambda _: late.set())
        assert late.wait(10)
        assert count == [future]

    def test_futures_can_be_awaited(self, client):
        make(client)

        async def pull_all() -> list[np.ndarray]:
            results = await asyncio.gather(*(pull(i) for i in range(10)))
            return results

        async def pull(i: int) -> np.ndarray:
            rows, _ = await client.pull_async("user", [i])
            return rows

        assert all(np.all(rows == 1.0) for rows in asyncio.run(pull_all()))

    def test_a_dropped_future_does_no_harm(self, client):
        make(client)
        for i in range(100):
            client.pull_async("user", np.arange(i + 1))
        assert np.all(client.pull("user", [1])[0] == 1.0)


class TestWaiting:
    def test_a_pull_that_waits_for_other_workers_ends_at_its_deadline_and_names_them(self):
        with tandem.local(timeout=4) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
            client.pull("t", [1])
            with pytest.raises(TimeoutError, match="worker"):
                client.pull("t", [1], step=1)

    def test_a_timeout_of_result_leaves_the_call_running(self):
        with tandem.local(timeout=5) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
            future = client.pull_async("t", [1], step=1)
            with pytest.raises(TimeoutError):
                future.result(timeout=0.05)
            assert not future.done()
            assert isinstance(future.exception(), errors.DeadlineExceededError)

    def test_ctrl_c_ends_a_wait(self):
        with tandem.local(timeout=30) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                client.pull("t", [1], step=1)
            assert time.monotonic() - began < 10
            client.set_mode("t", "async")  # releases the pull, which close() would wait for

    def test_a_push_that_interrupts_the_start_of_a_push_is_refused(self):
        with tandem.local() as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync")
            rows, version = client.pull("t", [1])
            with client._push_step(None):  # a signal handler runs here
                with pytest.raises(errors.FailedPreconditionError, match="signal handler"):
                    client.push("t", [1], np.ones_like(rows), version=version)
            client.push("t", [1], np.ones_like(rows), version=version)
            assert client.step == 1

    def test_other_threads_run_while_one_pulls(self):
        with tandem.local(timeout=2) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0), mode="sync", num_workers=2)
            counted = 0
            stop = threading.Event()

            def count() -> None:
                nonlocal counted
                while not stop.is_set():
                    counted += 1

            thread = threading.Thread(target=count)
            thread.start()
            with pytest.raises(TimeoutError):
                client.pull("t", [1], step=1)
            stop.set()
            thread.join()
            assert counted > 10_000


class TestDroppedTables:
    def test_a_dropped_table_is_gone_for_everybody_and_may_be_created_anew(self, client):
        make(client)
        make(client, "item")
        client.pull("user", [1])
        client.push("user", [1], np.ones((1, 4)))
        client.drop_table("user")
        assert list(client.tables()) == ["item"]
        with pytest.raises(errors.NotFoundError, match="'user'"):
            client.pull("user", [1])
        with pytest.raises(errors.NotFoundError, match="no table 'user' to drop; the servers have: item"):
            client.drop_table("user")
        make(client, dim=2)
        assert client.pull("user", [1])[0].tolist() == [[1.0, 1.0]]

    @pytest.mark.parametrize("mode", ["sync", "bounded:1", "async", "gba:8"])
    def test_a_table_that_is_created_after_some_steps_waits_for_none_of_them(self, client, mode):
        make(client)
        for _ in range(300):  # more than the pushes that may be early
            client.push("user", [1], np.zeros((1, 4)))
        make(client, "late", mode=mode, lr=1.0)
        for _ in range(2):
            rows, version = client.pull("late", [1])
            client.push("late", [1], np.ones((1, 4)), version=version)
        assert client.pull("late", [1])[0][0, 0] == -1.0

    def test_a_read_only_client_drops_nothing(self, client):
        make(client)
        with pytest.raises(errors.FailedPreconditionError, match="read-only, so it cannot drop a table"):
            tandem.Client(client._core, read_only=True).drop_table("user")


class TestIdsOfHashes:
    def test_negative_numbers_are_taken_by_their_bits_if_the_caller_says_so(self, client):
        make(client)
        hashes = np.array([-1, -(2**63), 5], np.int64)
        with pytest.raises(ValueError, match=r"pass ids.view\(np.uint64\), or ids.view\(torch.uint64\)"):
            client.pull("user", hashes)
        rows, version = client.pull("user", hashes.view(np.uint64))
        client.push("user", hashes.view(np.uint64), np.ones((3, 4)), version=version)
        unsigned = np.array([2**64 - 1, 2**63, 5], np.uint64)
        np.testing.assert_array_equal(client.pull("user", unsigned, read_only=True)[0], 0.5)


class TestWrongInput:
    @pytest.mark.parametrize(
        "ids, text",
        [
            ([-1], "must not be negative"),
            ([0.5], "ids must be integers"),
            ([float("nan")], "ids must be integers"),
            ([[1, 2]], "one dimension"),
            (["a"], "ids must be integers"),
            (None, "ids"),
        ],
    )
    def test_ids(self, client, ids, text):
        make(client)
        with pytest.raises(ValueError, match=text):
            client.pull("user", ids)
        with pytest.raises(ValueError, match=text):
            client.push("user", ids, np.ones((1, 4)))

    def test_gradients_of_the_wrong_shape_or_dtype(self, client):
        make(client)
        with pytest.raises(ValueError, match=r"shape \(1, 3\); it must be \(1, 4\)"):
            client.push("user", [1], np.ones((1, 3)))
        with pytest.raises(ValueError, match="float32"):
            client.push("user", [1], np.ones((1, 4), np.int32))

    def test_gradients_that_are_not_finite(self, client):
        make(client)
        with pytest.raises(ValueError, match="(?i)nan|finite"):
            client.push("user", [1], np.full((1, 4), np.nan, np.float32))

    def test_versions_of_the_wrong_kind(self, client):
        make(client)
        _, version = client.pull("user", [1])
        gradients = np.ones((1, 4))
        for wrong in ({"user": version}, (*version, 1), ("a",) * len(version), (-1,) * len(version), 7):
            with pytest.raises(ValueError, match="version of table 'user'"):
                client.push("user", [1], gradients, version=wrong)
        with pytest.raises(ValueError, match="must be the dict"):
            client.push({"user": ([1], gradients)}, version=version)
        with pytest.raises(ValueError, match="pooling"):
            client.push({"user": ([1], gradients)}, pooling="mean")
        client.push("user", [1], gradients, version=version)

    def test_a_push_that_was_refused_is_no_step(self):
        with tandem.local(timeout=10) as client:
            make(client, mode="sync")
            for gradient in (np.nan, 1.0, np.inf, 1.0):
                client.pull("user", [1])
                try:
                    client.push("user", [1], np.full((1, 4), gradient))
                except ValueError:
                    assert not np.isfinite(gradient)
            assert client.step == 2
            assert np.all(client.pull("user", [1])[0] == 0.0)

    def test_non_contiguous_arrays_are_copied_but_not_written(self, client):
        make(client)
        ids = np.arange(20)[::2]
        assert client.pull("user", ids)[0].shape == (10, 4)
        with pytest.raises(ValueError, match="contiguous"):
            client.pull("user", [1], out=np.zeros((1, 8), np.float32)[:, ::2])

    def test_out_of_the_wrong_kind(self, client):
        make(client)
        with pytest.raises(ValueError, match="float32"):
            client.pull("user", [1], out=np.zeros((1, 4)))

    def test_offsets(self, client):
        make(client)
        for offsets in ([0, 3], [1, 2], [0, 2, 1, 2], []):
            with pytest.raises(ValueError, match="offsets"):
                client.pull("user", [1, 2], pooling="sum", offsets=offsets)
        with pytest.raises(ValueError, match="pooling"):
            client.pull("user", [1], pooling="max", offsets=[0, 1])

    def test_an_unknown_table_is_named_with_those_that_exist(self, client):
        make(client)
        with pytest.raises(LookupError, match="no table 'usr'; the servers have: user"):
            client.pull("usr", [1])

    def test_a_table_without_optimizer_is_refused(self, client):
        with pytest.raises(ValueError, match="has no optimizer; give one of tandem.optim .*Adagrad"):
            client.create_table("t", dim=4)
        with pytest.raises(ValueError, match="tandem.optim"):
            client.create_table("t", dim=4, optimizer="adagrad")  # type: ignore[arg-type]

    def test_a_table_that_exists_otherwise(self, client):
        make(client, dim=4)
        make(client, dim=4)  # the same
        with pytest.raises(errors.AlreadyExistsError, match="dim"):
            make(client, dim=8)

    def test_wrong_settings(self, client):
        with pytest.raises(ValueError, match="lr|learning_rate"):
            make(client, lr=-1.0)
        with pytest.raises(ValueError, match="mode"):
            make(client, mode="asink")
        with pytest.raises(TypeError, match="rate"):
            tandem.optim.Adagrad(rate=1.0)
        make(client)
        with pytest.raises(ValueError, match="f64"):
            client.set_wire("user", pull="f64")

    def test_local_with_no_server(self):
        with pytest.raises(ValueError, match="servers is 0"):
            tandem.local(servers=0)

    def test_connect_outside_of_a_job_says_what_to_do(self, monkeypatch):
        for name in ("RANK", "WORLD_SIZE", "TANDEM_ROLE"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(errors.FailedPreconditionError, match="tandem run --ps"):
            tandem.connect()

    def test_connect_to_nobody(self):
        with pytest.raises(errors.TandemError, match="127.0.0.1:1"):
            tandem.connect(servers=["127.0.0.1:1"], timeout=1)
        with pytest.raises(ValueError, match="list of addresses"):
            tandem.connect(servers="127.0.0.1:1")


class TestLife:
    def test_a_closed_client_says_so(self):
        client = tandem.local()
        make(client)
        client.close()
        client.close()
        assert client.closed
        with pytest.raises(errors.CancelledError, match="closed"):
            client.pull("user", [1])

    def test_a_client_cannot_be_pickled(self, client):
        with pytest.raises(TypeError, match="connect in the process"):
            pickle.dumps(client)

    def test_a_forked_child_gets_an_error_and_can_connect_anew(self, client):
        make(client)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                try:
                    client.pull("user", [1])
                    text = "no error"
                except errors.FailedPreconditionError as error:
                    text = str(error)
                with tandem.local() as other:
                    make(other)
                    text += f" {other.pull('user', [1])[0][0, 0]}"
                os.write(write, text.encode())
            finally:
                os._exit(0)
        os.close(write)
        text = os.read(read, 1000).decode()
        os.waitpid(child, 0)
        assert "forked" in text and text.endswith("1.0"), text
        assert np.all(client.pull("user", [1])[0] == 1.0)


class TestKinds:
    def test_every_optimizer_of_the_servers_trains(self, client):
        for i, name in enumerate(tandem.optim.__all__):
            make_optimizer = getattr(tandem.optim, name)
            client.create_table(f"t{i}", 4, make_optimizer(lr=0.1), init=tandem.init.Constant(1.0))
            client.pull(f"t{i}", [1])
            client.push(f"t{i}", [1], np.ones((1, 4)))
            assert np.all(client.pull(f"t{i}", [1])[0] < 1.0), name

    def test_every_kind_has_a_name_that_the_language_allows(self):
        import keyword

        for module in (tandem.optim, tandem.init, tandem.admission, tandem.eviction):
            for name in module.__all__:
                assert name.isidentifier() and not keyword.iskeyword(name), name
        assert "Never" in tandem.eviction.__all__

    def test_functions_have_signatures_and_documentation(self):
        import inspect

        assert "epsilon" in inspect.signature(tandem.optim.Adagrad).parameters
        assert "Duchi" in tandem.optim.Adagrad.__doc__ or "adagrad" in tandem.optim.Adagrad.__doc__.lower()
        assert repr(tandem.optim.Adagrad(lr=0.25)) == "tandem.optim.Adagrad(lr=0.25)"
