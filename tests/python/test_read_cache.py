# SPDX-License-Identifier: Apache-2.0
"""The read cache of serving clients."""

import numpy as np
import pytest

import tandem


@pytest.fixture
def filled(client: tandem.Client) -> tandem.Client:
    client.create_table("t", 2, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0))
    client.pull("t", [1, 2, 3])
    return client


def first(client: tandem.Client, ids: "list[int]", **options) -> "list[float]":
    return client.pull("t", ids, read_only=True, **options)[0][:, 0].tolist()


def requests(client: tandem.Client) -> int:
    return client.stats("t")["pulls"]


class TestReadCache:
    def test_copies_serve_without_a_request_and_are_counted(self, filled):
        assert "read_cache" not in filled.stats("t")
        filled.set_read_cache("t", 1 << 20, seconds=600)
        assert first(filled, [1, 2]) == [1.0, 1.0]
        filled.push("t", [1], np.ones((1, 2)))
        before = requests(filled)
        assert first(filled, [2, 1]) == [1.0, 1.0]
        assert filled.pull("t", [1, 2], read_only=True)[1] == (0,) * filled.num_servers
        assert filled.pull_async("t", [1, 2], read_only=True).result(timeout=10)[0][:, 0].tolist() == [1.0, 1.0]
        assert requests(filled) == before
        cache = filled.stats("t")["read_cache"]
        assert (cache["lookups"], cache["hits"], cache["rows"]) == (8, 6, 2) and 0 < cache["bytes"] <= 1 << 20
        assert filled.pull("t", [1])[0][0, 0] == 0.0  # training goes around the cache
        filled.clear_read_cache()
        assert first(filled, [1]) == [0.0]
        filled.set_read_cache("t", 0)
        assert "read_cache" not in filled.stats("t")

    def test_a_copy_that_has_expired_is_requested_again(self, filled):
        filled.set_read_cache("t", 1 << 20, seconds=1e-9)
        first(filled, [1])
        filled.push("t", [1], np.ones((1, 2)))
        assert first(filled, [1]) == [0.0] and filled.stats("t")["read_cache"]["expired"] == 1

    def test_assigned_rows_and_loaded_checkpoints_drop_copies(self, filled, tmp_path):
        filled.set_read_cache("t", 1 << 20, seconds=600)
        filled.save_checkpoint(tmp_path)
        assert first(filled, [1, 2]) == [1.0, 1.0]
        filled.assign("t", [2], np.full((1, 2), 7.0, np.float32))
        assert first(filled, [1, 2]) == [1.0, 7.0]
        filled.load_checkpoint(tmp_path)
        assert first(filled, [1, 2]) == [1.0, 1.0]

    def test_a_read_only_client_gives_each_table_a_cache(self, servers):
        with tandem.connect(servers=servers.addresses, timeout=30) as trainer:
            trainer.create_table("t", 2, tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0))
            trainer.pull("t", [1])
            with tandem.connect(servers=servers.addresses, read_only=True, cache_bytes=1 << 20, cache_seconds=600) as serving:
                assert first(serving, [1]) == [1.0]
                trainer.push("t", [1], np.ones((1, 2)))
                assert first(serving, [1]) == [1.0]
                assert serving.stats("t")["read_cache"]["hits"] == 1
                with servers.processes[0].stopped():
                    assert first(serving, [1]) == [1.0]  # needs no server
                serving.clear_read_cache("t")
                assert first(serving, [1]) == [0.0]

    def test_wrong_options(self, filled):
        for options, text in (
            ({"bytes": 10}, "less than 16 rows"),
            ({"bytes": -1}, "bytes is -1"),
            ({"bytes": 1 << 20, "seconds": 0}, "time to live is 0"),
            ({"bytes": 1 << 20, "seconds": float("nan")}, "time to live"),
        ):
            with pytest.raises(ValueError, match=text):
                filled.set_read_cache("t", **options)
        with pytest.raises(tandem.errors.NotFoundError):
            filled.set_read_cache("u", 1 << 20)
        with pytest.raises(ValueError, match="cache_bytes belongs to read_only=True"):
            tandem.connect(servers=["127.0.0.1:1"], cache_bytes=1)
