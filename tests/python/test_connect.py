# SPDX-License-Identifier: Apache-2.0
"""Connecting to the servers of a job, from inside and from outside."""

import os

import numpy as np
import pytest
from processes import start_job, wait_until

import tandem
from tandem import errors


def addresses_of(logs, count):
    """Returns the addresses of a job's servers, from their logs."""
    found: list[str] = []

    def all_there() -> bool:
        found.clear()
        for index in range(count):
            log = logs / f"ps-{index}.log"
            text = log.read_text() if log.exists() else ""
            if "serving at " in text:
                found.append(text.split("serving at ")[1].split(",")[0])
        return len(found) == count

    wait_until(all_there, f"the start of {count} servers")
    return found


class TestInAJob:
    def test_workers_of_tandem_run_train_together(self, tmp_path):
        train = """
import numpy as np, tandem
with tandem.connect(timeout=30) as client:
    assert client.world_size == 2 and client.num_servers == 2
    client.create_table("user", 4, tandem.optim.SGD(lr=1.0), tandem.init.Zeros(), mode="sync")
    for step in range(5):
        rows, version = client.pull("user", np.arange(10))
        assert np.all(rows == -2 * step), rows  # the gradients of both workers add up
        client.push("user", np.arange(10), np.ones((10, 4)), version=version)
    print("rank", client.rank, "has trained")
"""
        with start_job(tmp_path, train, "--ps", "2", "--workers", "2") as job:
            assert job.wait() == 0, job.output
            assert "rank 0 has trained" in job.output and "rank 1 has trained" in job.output

    def test_a_worker_that_forgets_to_close_its_client_does_not_fail_the_job(self, tmp_path):
        train = "import tandem\nclient = tandem.connect(timeout=30)\nclient.tables()\n"
        with start_job(tmp_path, train, "--ps", "1", "--workers", "2") as job:
            assert job.wait() == 0, job.output

    def test_a_worker_that_waits_for_one_that_has_ended_is_told_so_long_before_its_timeout(self, tmp_path):
        train = """
import tandem
from tandem import errors
with tandem.connect(timeout=600) as client:
    client.create_table("t", 4, tandem.optim.SGD(lr=1.0), mode="sync")
    for step in range(2 if client.rank == 1 else 5):
        try:
            rows, version = client.pull("t", [1])
        except errors.FailedPreconditionError as error:
            assert step == 3 and "worker 1 has left the job" in str(error), error
            print("rank 0 was told")
            break
        client.push("t", [1], [[1.0] * 4], version=version)
"""
        with start_job(tmp_path, train, "--ps", "2", "--workers", "2") as job:
            assert job.wait() == 0, job.output
            assert "rank 0 was told" in job.output

    def test_an_exception_of_one_worker_is_the_reason_for_the_end_of_the_job(self, tmp_path):
        train = """
import tandem
client = tandem.connect(timeout=30)
client.create_table("t", 4, tandem.optim.SGD(lr=1.0), mode="sync")
if client.rank == 1:
    raise ValueError("boom")
client.pull("t", [1], step=1)
"""
        with start_job(tmp_path, train, "--ps", "1", "--workers", "2") as job:
            assert job.wait() != 0
            assert "boom" in job.output


class TestFromOutside:
    def test_a_notebook_works_on_the_servers_of_a_running_job(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "go on")
        train = f"""
import os, pathlib, select, tandem
# Open for writing as well, so that the pipe has no end before this test writes to it.
go_on = os.open({str(tmp_path / "go on")!r}, os.O_RDWR)
with tandem.connect(timeout=30) as client:
    client.create_table("t", 4, tandem.optim.SGD(lr=1.0), tandem.init.Zeros(), num_workers=8)
    client.pull("t", [1])
    client.push("t", [1], [[1.0] * 4])
    pathlib.Path({str(tmp_path / "pushed")!r}).touch()
    assert select.select([go_on], [], [], 60)[0]
    client.push("t", [1], [[1.0] * 4])  # the notebook has not fenced it off
"""
        with start_job(tmp_path, train, "--ps", "2", "--workers", "1") as job:
            addresses = addresses_of(tmp_path / "logs", 2)
            wait_until((tmp_path / "pushed").exists, "the worker's push")
            monkeypatch.setenv("TANDEM_KEY_FILE", str(tmp_path / "logs" / "key"))
            with tandem.connect(servers=addresses, timeout=20) as notebook:
                assert notebook.rank >= 1  # the worker has 0
                assert notebook.stats("t")["rows"] == 1
                rows, version = notebook.pull("t", [1, 2])
                np.testing.assert_array_equal(rows, [[-1.0] * 4, [0.0] * 4])
                notebook.push("t", [2], np.ones((1, 4)), version=version)
                notebook.create_table("own", 2, tandem.optim.SGD(lr=1.0))
                np.testing.assert_array_equal(notebook.pull("t", [2])[0], [[-1.0] * 4])
            (tmp_path / "go on").write_bytes(b"!")
            assert job.wait() == 0, job.output

    def test_a_process_with_another_key_than_the_job_neither_reads_nor_changes_anything(self, servers, monkeypatch):
        with tandem.connect(servers=servers.addresses, timeout=20) as member:
            member.create_table("t", 4, tandem.optim.SGD(lr=1.0), tandem.init.Constant(2.0))
            member.pull("t", [1])
            monkeypatch.setenv("TANDEM_KEY", "tandem_key_" + 32 * "0f")
            with pytest.raises(errors.PermissionDeniedError, match="another key than this process"):
                tandem.connect(servers=servers.addresses, timeout=20)
            monkeypatch.undo()
            np.testing.assert_array_equal(member.pull("t", [1])[0], [[2.0] * 4])
            assert member.stats("t")["rows"] == 1

    def test_a_notebook_trains_tables_of_its_own_in_every_mode_and_the_async_ones_of_the_job(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "go on")
        train = f"""
import os, pathlib, select, tandem
go_on = os.open({str(tmp_path / "go on")!r}, os.O_RDWR)
with tandem.connect(timeout=30) as client:
    for mode in ("async", "sync", "bounded:2"):
        client.create_table(mode.replace(":", "-"), 4, tandem.optim.SGD(lr=1.0), tandem.init.Zeros(), mode=mode)
    client.pull("sync", [1])
    client.push({{"sync": ([1], [[1.0] * 4]), "async": ([1], [[1.0] * 4])}})
    if client.rank == 0:
        pathlib.Path({str(tmp_path / "pushed")!r}).touch()
    assert select.select([go_on], [], [], 60)[0]
    client.push("sync", [1], [[1.0] * 4])  # the notebook has moved nobody's clock
    assert client.pull("sync", [1])[0][0, 0] == -4
"""
        with start_job(tmp_path, train, "--ps", "1", "--workers", "2") as job:
            addresses = addresses_of(tmp_path / "logs", 1)
            wait_until((tmp_path / "pushed").exists, "the workers' pushes")
            monkeypatch.setenv("TANDEM_KEY_FILE", str(tmp_path / "logs" / "key"))
            for attempt in range(2):  # the second one is a notebook that was started again
                with tandem.connect(servers=addresses, timeout=20) as notebook:
                    assert notebook.rank >= 2
                    rows, version = notebook.pull("async", [1])
                    notebook.push("async", [1], np.ones((1, 4)), version=version)
                    np.testing.assert_array_equal(notebook.pull("async", [1])[0], rows - 1)
                    assert notebook.pull("sync", [1], read_only=True)[0][0, 0] <= 0
                    with pytest.raises(errors.InvalidArgumentError, match="'sync' has 2 workers, the first of which has rank 0"):
                        notebook.push("sync", [1], np.ones((1, 4)))
                    for mode in ("async", "sync", "bounded:2", "gba:8"):
                        own = f"own-{mode.replace(':', '-')}"
                        notebook.create_table(own, 2, tandem.optim.SGD(lr=1.0), tandem.init.Zeros(), mode=mode)
                        before = notebook.pull(own, [7])[0]
                        for _ in range(3):
                            rows, version = notebook.pull(own, [7])
                            notebook.push(own, [7], np.ones((1, 2)), version=version)
                        np.testing.assert_array_equal(notebook.pull(own, [7])[0], before - 3)
                        notebook.assign(own, [8], np.full((1, 2), 5.0))
                        if mode != "async":
                            notebook.drop_table(own)
            (tmp_path / "go on").write_bytes(b"!!")
            assert job.wait() == 0, job.output

    def test_a_reader_does_not_fence_off_a_worker(self, servers):
        with tandem.connect(servers=servers.addresses, rank=0, timeout=20) as worker:
            worker.create_table("t", 2, tandem.optim.SGD(lr=1.0))
            worker.pull("t", [1])
            worker.push("t", [1], np.ones((1, 2)))
            with tandem.connect(servers=servers.addresses, rank=0, timeout=20) as other:
                other.stats("t")
                other.pull("t", [1])
                worker.push("t", [1], np.ones((1, 2)))
                other.push("t", [1], np.ones((1, 2)))  # a newer process of worker 0
                with pytest.raises(errors.FailedPreconditionError, match="epoch"):
                    worker.push("t", [1], np.ones((1, 2)))

    def test_a_process_that_is_forked_after_a_connection_learns_at_once_that_it_cannot_connect(self, servers):
        address = servers.addresses[0]
        with tandem.connect(servers=[address], timeout=20) as client:
            client.create_table("t", 2, tandem.optim.SGD(lr=1.0))
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    texts = []
                    for attempt in (lambda: client.pull("t", [1]), lambda: tandem.connect(servers=[address], timeout=600)):
                        try:
                            attempt()
                        except errors.FailedPreconditionError as error:
                            texts.append(str(error))
                    with tandem.local() as inside:  # needs no connection
                        texts.append(str(inside.num_servers))
                    os.write(write, "\n".join(texts).encode())
                finally:
                    os._exit(0)
            os.close(write)
            pulled, connected, inside = os.read(read, 10000).decode().split("\n")
            os.waitpid(child, 0)
            assert "was forked after the client had connected" in pulled and "spawn" in pulled
            assert "was forked from process" in connected and "spawn" in connected
            assert inside == "1"
            client.pull("t", [1])

    def test_wrong_servers_and_ranks(self):
        with pytest.raises(ValueError, match="servers is empty"):
            tandem.connect(servers=[])
        with pytest.raises(ValueError, match="rank is -1"):
            tandem.connect(servers=["127.0.0.1:1"], rank=-1)
