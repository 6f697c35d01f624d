# SPDX-License-Identifier: Apache-2.0
"""A serving process of test_job.py: it belongs to no job, and reads the tables of one."""

import sys

import numpy as np

import tandem
from tandem import errors


def main() -> None:
    expected = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    with tandem.connect(servers=sys.argv[1:], read_only=True, timeout=10) as client:
        assert client.read_only and sorted(client.tables()) == ["d", "t"]
        np.testing.assert_array_equal(client.pull_dense("d"), np.full(10, 0.25, np.float32))
        rows, _ = client.pull("t", np.arange(101))
        np.testing.assert_array_equal(rows[:100], expected)
        np.testing.assert_array_equal(rows[100], 0.5)  # an absent row reads as its initial value
        scanned = dict(zip(*(np.concatenate(part) for part in zip(*client.scan("t", block=30)))))
        np.testing.assert_array_equal(np.stack([scanned[i] for i in range(100)]), expected)
        try:
            client.push("t", [1], np.ones((1, 16)))
        except errors.FailedPreconditionError as error:
            assert "read-only" in str(error)
        else:
            raise AssertionError("a read-only client has pushed")
        try:
            client.pull("u", [1])
        except LookupError as error:
            assert "the servers have: d, t" in str(error)
        else:
            raise AssertionError("there is no table 'u'")
    with tandem.connect(servers=sys.argv[1:], read_only=True, wire="int8", timeout=10) as client:
        rows, _ = client.pull("t", np.arange(100))
        difference = np.abs(rows - expected)
        assert 0 < difference.max() and np.all(difference <= np.abs(expected).max(axis=1, keepdims=True) / 127)
    # Clients that may push have ranks of their own, above the job's worker; those that only read have none.
    with tandem.connect(servers=sys.argv[1:], timeout=10) as one, tandem.connect(servers=sys.argv[1:], timeout=10) as other:
        assert client.rank == 0 and 1 <= one.rank != other.rank >= 1
        np.testing.assert_array_equal(other.pull_dense("d", read_only=True), np.full(10, 0.25, np.float32))
    with tandem.connect(servers=sys.argv[1:], timeout=10) as again:
        assert again.rank == one.rank
    print("read")


if __name__ == "__main__":
    main()
