# SPDX-License-Identifier: Apache-2.0
"""A job of two nodes whose store is in etcd outlives the death of each machine, the first one included."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import pytest
from processes import start_job

SCRIPT = """
import pathlib, sys
import numpy as np
import tandem

go = pathlib.Path(sys.argv[0]).with_name("go")
with tandem.connect(timeout=60) as client:
    client.create_table("t", 4, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.0), mode="async")
    ids = np.arange(64) + 1000 * client.rank
    steps = 0
    while not go.exists():
        client.push("t", ids, -np.ones((len(ids), 4), np.float32))
        steps += 1
        if steps % 20 == 0:
            print(f"worker {client.rank} has pushed {steps} times", flush=True)
    rows, _ = client.pull("t", ids)
    print(f"worker {client.rank} ends after {steps} pushes: rows from {rows.min():.0f} to {rows.max():.0f}", flush=True)
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Etcd:
    """A cluster of three members. Killed at the end of a `with` block."""

    def __init__(self, folder: pathlib.Path) -> None:
        ports = free_ports(6)
        peers = ",".join(f"m{i}=http://127.0.0.1:{ports[3 + i]}" for i in range(3))
        self.endpoints = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
        self.members, self._commands = [], []
        for i in range(3):
            client, peer = f"http://127.0.0.1:{ports[i]}", f"http://127.0.0.1:{ports[3 + i]}"
            command = ["etcd", "--name", f"m{i}", "--data-dir", str(folder / f"etcd-{i}"), "--log-level", "error", "--initial-cluster", peers]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            self._commands.append(command)
        self._start()

    def _start(self) -> None:
        self.members = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in self._commands]

    def restart(self) -> None:
        """Kills all members and starts them again."""
        self.__exit__()
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.kill()
            member.wait()


def last_count(rank: int, output: str) -> int:
    return int(re.findall(rf"worker {rank} has pushed (\d+) times", output)[-1])


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (etcd-server)")
def test_no_push_is_lost_when_etcd_restarts_and_the_first_nodes_machine_dies_with_a_member_of_etcd(tmp_path):
    with Etcd(tmp_path) as etcd:

        def node(rank: int, name: str):
            (tmp_path / name).mkdir(exist_ok=True)
            where = ["--nnodes", "2", "--node-rank", str(rank), "--rdzv-backend", "etcd", "--rdzv-endpoint", etcd.endpoints]
            what = ["--rdzv-id", "job", "--job-store", "etcd", "--ps", "1", "--ps-followers", "1", "--workers", "1"]
            return start_job(tmp_path / name, SCRIPT, *where, *what, "--restart", "worker=alone", "--rdzv-conf", "lease=8")

        with node(0, "a") as a, node(1, "b") as b:
            for rank, one in ((0, a), (1, b)):
                one.wait_for_output("primary of shard")
                one.wait_for_output("follower of shard")
                one.wait_for_output(f"worker {rank} has pushed 100 times")
            etcd.restart()
            for rank, one in ((0, a), (1, b)):
                one.wait_for_output(f"worker {rank} has pushed {last_count(rank, one.output) + 400} times")
            os.killpg(a._process.pid, signal.SIGKILL)
            etcd.members[0].kill()
            a.wait()
            before = last_count(0, a.output)
            b.wait_for_output("takes over shard 0")
            b.wait_for_output("has been silent for .*; the round goes on without it")
            reached = last_count(1, b.output)
            b.wait_for_output(f"worker 1 has pushed {reached + 200} times")
            with node(0, "a") as again:
                again.wait_for_output("in the place of a node that was absent")
                again.wait_for_output("follower of shard 0")
                again.wait_for_output("worker 0 has pushed 100 times")
                for folder in ("a", "b"):
                    (tmp_path / folder / "go").touch()
                assert again.wait() == 0
                assert b.wait() == 0
                pattern = r"worker (\d) ends after (\d+) pushes: rows from (\d+) to (\d+)"
                survivor = re.search(pattern, b.output)
                successor = re.search(pattern, again.output)
    assert survivor and successor, b.output + again.output
    assert survivor[2] == survivor[3] == survivor[4], "each push of the worker that lived counts once"
    # The last push of the first life counts or not, as a whole for each server.
    assert int(successor[3]) >= before + int(successor[2])
    assert int(successor[4]) - int(successor[3]) <= 1
    assert "starting again" not in b.output
