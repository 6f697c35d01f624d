# SPDX-License-Identifier: Apache-2.0
"""The worker of test_job.py. It runs the reader, a process outside of the job, with the addresses of its servers."""

import os
import pathlib
import subprocess
import sys

import numpy as np

import tandem


def main() -> int:
    with tandem.connect(timeout=30) as client:
        assert client.world_size == 1 and len(client.addresses) == client.num_servers == 2
        client.create_table("t", 16, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.5))
        client.assign("t", np.arange(100), np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32))
        client.create_dense("d", 10, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(0.25))
        names = ("TANDEM_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_")
        outside = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        outside["TANDEM_KEY_FILE"] = os.environ["TANDEM_KEY_FILE"]  # without it the reader could not register
        reader = pathlib.Path(__file__).with_name("job_reader.py")
        done = subprocess.run([sys.executable, "-B", str(reader), *client.addresses], env=outside, timeout=60)
        assert client.stats("t")["rows"] == 100
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
