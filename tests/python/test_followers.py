# SPDX-License-Identifier: Apache-2.0
"""A client of parameter servers with followers goes on when a primary is killed."""

import json
import os
import pathlib
import signal
import subprocess

from processes import DEADLINE_S, start_job, tandem_binary, wait_until

SCRIPT = """
import pathlib, sys
import numpy as np
import tandem

killed = pathlib.Path(sys.argv[0]).with_name("killed")
ids = np.arange(64)
with tandem.connect(timeout=60) as client:
    client.create_table("t", 4, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.0))
    steps, more = 0, 50
    while more > 0:
        _, version = client.pull("t", ids)
        client.push("t", ids, -np.ones((len(ids), 4), np.float32), version=version)
        steps += 1
        more -= killed.exists()
        if steps == 10:
            print("it trains", flush=True)
    rows, _ = client.pull("t", ids)
    print("each push counts once:", bool((rows == steps).all()), flush=True)
"""


def primary_of(shard: int, logs: pathlib.Path) -> int:
    """The process id of the shard's primary once the shard also has a follower in sync, or 0."""
    ask = {"capture_output": True, "timeout": DEADLINE_S, "text": True}
    shards = subprocess.run([tandem_binary(), "ps", "status", "--job", str(logs), "--json"], **ask).stdout
    if not shards or not json.loads(shards)["shards"][shard]["placement"].get("in_sync"):
        return 0
    status = subprocess.run([tandem_binary(), "status", "--job", str(logs), "--json"], **ask).stdout
    members = json.loads(status)["members"] if status else []
    return next((member["pid"] for member in members if member["state"] == f"primary of shard {shard}"), 0)


def test_each_push_of_a_client_counts_once_although_a_primary_is_killed(tmp_path):
    with start_job(tmp_path, SCRIPT, "--ps", "2", "--ps-followers", "1", "--workers", "1") as job:
        job.wait_for_output("it trains")
        wait_until(lambda: primary_of(1, tmp_path / "logs") > 0, "a primary with a follower")
        os.kill(primary_of(1, tmp_path / "logs"), signal.SIGKILL)
        job.wait_for_output("was killed by signal 9")
        (tmp_path / "killed").touch()
        job.wait_for_output("each push counts once: True")
        assert job.wait() == 0
    assert "the primary is now" in job.output


READER = """
import numpy as np
import tandem
from tandem.errors import InvalidArgumentError

ids = np.arange(64)
with tandem.connect(timeout=60) as client:
    client.create_table("t", 4, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.0))
    _, version = client.pull("t", ids)
    client.push("t", ids, -np.ones((len(ids), 4), np.float32), version=version)
    assert client.follower_reads() == {"requests": 0, "by_followers": 0, "last_lag": 0, "largest_lag": 0}
    with tandem.connect(servers=client.addresses, read_only=True, max_lag=3600, timeout=60) as reader:
        rows, _ = reader.pull("t", ids)
        while reader.follower_reads()["by_followers"] < 10 or not (rows == 1).all():
            rows, _ = reader.pull("t", ids)
        print("every push is read:", bool((rows == 1).all()), flush=True)
        print("lags are told:", 0 < reader.follower_reads()["largest_lag"] <= 3600, flush=True)
try:
    tandem.connect(max_lag=-1)
except InvalidArgumentError as error:
    print("refused:", error, flush=True)
"""


def test_a_client_that_allows_a_lag_reads_at_followers(tmp_path):
    with start_job(tmp_path, READER, "--ps", "2", "--ps-followers", "1", "--workers", "1") as job:
        job.wait_for_output("every push is read: True")
        job.wait_for_output("lags are told: True")
        job.wait_for_output("refused: max_lag is -1")
        assert job.wait() == 0
