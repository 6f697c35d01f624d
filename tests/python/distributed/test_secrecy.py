# SPDX-License-Identifier: Apache-2.0
"""What an eavesdropper between two hosts sees of a job: two network namespaces, joined by a cable that is read. Needs root and `ip`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = pathlib.Path(__file__).with_name("secret_program.py")
TIMEOUT = 240
ADDRESSES = ("10.213.78.1", "10.213.78.2")
# What must not be read, and what it is.
SECRETS = {b"GrAd" * 8: "gradients", b"RoWs" * 8: "rows", b"secret_table": "names of tables", b"ps/placement": "keys of the store",
           b"tandem.v1.": "methods"}
READER = """
import socket, sys
cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
cable.bind((sys.argv[1], 0))
cable.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
print("reading", flush=True)
with open(sys.argv[2], "wb") as file:
    while True:
        file.write(cable.recv(1 << 17))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """The names of two network namespaces that are joined by a cable."""
    names = [f"tandem-{os.getpid()}-{side}" for side in range(2)]
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and `ip`")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
        except subprocess.CalledProcessError:
            pytest.skip("this machine gives out no network namespaces")
        ip("-n", names[0], "link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", names[1])
        for side, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{ADDRESSES[side]}/24", "dev", f"cable{side}")
            ip("-n", name, "link", "set", f"cable{side}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


@contextlib.contextmanager
def reading(host: str, device: str, file: pathlib.Path) -> Iterator[None]:
    """Writes every packet that passes a device to a file."""
    reader = subprocess.Popen(["ip", "netns", "exec", host, sys.executable, "-c", READER, device, str(file)], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
        yield
    finally:
        reader.send_signal(signal.SIGTERM)
        reader.wait(timeout=30)


def run_job(hosts: list[str], folder: pathlib.Path, environment: dict[str, str]) -> None:
    """A job of two nodes, each with a parameter server and a worker."""
    tandem = os.environ["TANDEM_BINARY"]
    nodes = []
    for side, host in enumerate(hosts):
        command = ["ip", "netns", "exec", host, tandem, "run", "--nnodes", "2", "--node-rank", str(side), "--master-addr", ADDRESSES[0],
                   "--master-port", "29500", "--ps", "1", "--nproc-per-node", "1", "--log-dir", str(folder / f"node{side}"), "--",
                   sys.executable, str(PROGRAM)]
        nodes.append(subprocess.Popen(command, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    outputs = [node.communicate(timeout=TIMEOUT)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(outputs)


def test_an_eavesdropper_reads_no_gradient_row_or_key(hosts: list[str], tmp_path: pathlib.Path) -> None:
    with reading(hosts[0], "cable0", tmp_path / "cable"):
        run_job(hosts, tmp_path, {})
    seen = (tmp_path / "cable").read_bytes()
    assert len(seen) > 500_000, "the values did not pass the cable"
    assert [what for secret, what in SECRETS.items() if secret in seen] == []


def test_a_trusted_network_shows_all_of_it(hosts: list[str], tmp_path: pathlib.Path) -> None:
    """The test above would see what is sent in clear."""
    with reading(hosts[0], "cable0", tmp_path / "cable"):
        run_job(hosts, tmp_path, {"TANDEM_TRUSTED_NETWORK": "1"})
    seen = (tmp_path / "cable").read_bytes()
    assert [what for secret, what in SECRETS.items() if secret not in seen] == []
