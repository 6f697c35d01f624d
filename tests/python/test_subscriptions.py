# SPDX-License-Identifier: Apache-2.0
"""Programs that serve a model follow the tables of parameter servers."""

import subprocess
import threading

import numpy as np
import pytest
from processes import DEADLINE_S, tandem_binary

import tandem
from tandem import errors


def rows_of(copy: dict[int, dict[int, np.ndarray]]) -> dict[int, list[float]]:
    return {id: row.tolist() for bucket in copy.values() for id, row in bucket.items()}


def train(client: tandem.Client, random: np.random.Generator, steps: int) -> None:
    for _ in range(steps):
        ids = random.integers(0, 500, size=20)
        _, version = client.pull("user", ids)
        client.push("user", ids, random.standard_normal((20, 3)).astype(np.float32), version=version)


def read_on(subscription, copy) -> bytes:
    while True:
        batch = subscription.next(timeout=DEADLINE_S)
        assert batch is not None
        for change in batch.changes:
            assert change.table == "user" and change.rows.shape == (len(change.ids), 3)
            change.apply_to(copy)
        if batch.caught_up:
            return batch.position


def test_a_subscriber_has_the_rows_of_the_server_and_goes_on_where_it_was(servers):
    random = np.random.default_rng(1)
    with tandem.connect(servers.addresses, timeout=60) as client:
        client.create_table("user", dim=3, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0))
        train(client, random, 20)
        copy: dict[int, dict[int, np.ndarray]] = {}
        with tandem.subscribe(servers.addresses, tables=["user"], interval=0.0) as subscription:
            position = read_on(subscription, copy)
            assert subscription.next(timeout=0.01) is None
        assert len(rows_of(copy)) > 100
        train(client, random, 20)
        changed = 0
        with tandem.subscribe(servers.addresses, tables=["user"], position=position) as subscription:
            batch = next(subscription)
            assert batch.changes and not any(change.whole for change in batch.changes)
            for change in batch.changes:
                changed += len(change.ids)
                change.apply_to(copy)
            if not batch.caught_up:
                read_on(subscription, copy)
        assert changed <= 20 * 20 + 20
        ids = np.array(sorted(rows_of(copy)))
        rows, _ = client.pull("user", ids)
        assert rows.tolist() == [rows_of(copy)[int(id)] for id in ids]


def test_readers_follow_a_directory_that_a_command_writes(servers, tmp_path):
    random = np.random.default_rng(2)
    copied = str(tmp_path / "copy")
    command = [tandem_binary(), "ps", "subscribe", "--servers", servers.addresses[0], "--out", copied, "--once"]
    with tandem.connect(servers.addresses, timeout=60) as client:
        client.create_table("user", dim=3, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Constant(1.0))
        copy: dict[int, dict[int, np.ndarray]] = {}
        follower = tandem.follow(copied, poll=0.01)
        for _ in range(3):
            train(client, random, 10)
            subprocess.run(command, check=True, timeout=DEADLINE_S, capture_output=True)
            for change in next(follower):
                change.apply_to(copy)
            ids = np.array(sorted(rows_of(copy)))
            rows, _ = client.pull("user", ids)
            assert rows.tolist() == [rows_of(copy)[int(id)] for id in ids]


def test_close_ends_a_waiting_subscriber(servers):
    subscription = tandem.subscribe(servers.addresses)
    assert subscription.next(timeout=DEADLINE_S).caught_up  # there are no tables
    closer = threading.Timer(0.1, subscription.close)
    closer.start()
    with pytest.raises(errors.CancelledError):
        next(subscription)
    closer.join()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": "127.0.0.1:7000"}, "must be a list of addresses"),
        ({"servers": []}, "must be a list of addresses"),
        ({"tables": "user"}, r"tables=\['user'\]"),
        ({"interval": -1.0}, "interval is -1.0"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"position": b"nonsense"}, "begin without a position"),
    ],
)
def test_mistakes_are_named(servers, arguments, message):
    with pytest.raises(errors.InvalidArgumentError, match=message):
        tandem.subscribe(**{"servers": servers.addresses, **arguments})


def test_a_table_that_does_not_exist_is_named(servers):
    with tandem.subscribe(servers.addresses, tables=["nobody"]) as subscription:
        with pytest.raises(errors.NotFoundError, match="nobody"):
            subscription.next(timeout=DEADLINE_S)
