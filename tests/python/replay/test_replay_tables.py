# SPDX-License-Identifier: Apache-2.0
"""The configuration of replay tables is that of C++, and their state can be seen and changed."""

import dataclasses
import json

import numpy as np
import pytest

import tandem
from tandem import _core, replay
from tandem.replay import _tables


def leaves(message: object, path: str = "") -> dict[str, object]:
    if not isinstance(message, dict):
        return {path: message}
    return {k: v for name, value in message.items() for k, v in leaves(value, f"{path}.{name}" if path else name).items()}


def numbers(message: dict[str, object]) -> dict[str, object]:
    """Returns the leaves of a message, whose 64-bit numbers are text in JSON; without those that are zero or absent."""
    plain = {k: float(v) if isinstance(v, (int, float)) or (isinstance(v, str) and v.isdigit()) else v for k, v in leaves(message).items()}
    return {k: v for k, v in plain.items() if v not in (0.0, "", [])}


# Python has a message whose kind is NONE where C++ leaves it out.
NO_STALENESS = {"staleness": {"kind": "NONE", "max_lag": 1, "batch": 1, "every": 1, "slow": "WAIT", "lease_seconds": 30, "max_rollout_seconds": 600}}


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (replay.Table(""), _core.replay_table()),
        (replay.Table.queue("q", 7, 2), _core.replay_queue("q", 7, 2)),
        (replay.Table.stack("s", 5), _core.replay_stack("s", 5)),
        (replay.Table.uniform("u", 100, 10), _core.replay_uniform("u", 100, 10)),
        (replay.Table.prioritized("p", 100, 10, 0.5), _core.replay_prioritized("p", 100, 10, 0.5)),
        (replay.Table.paced_queue("w", 4, 2, 3, "drop"), _core.replay_paced_queue("w", 4, 2, 3, "drop")),
    ],
    ids=["default", "queue", "stack", "uniform", "prioritized", "paced_queue"],
)
def test_a_configuration_is_the_one_of_cpp(here, there):
    assert numbers(json.loads(here.to_json())) == numbers({**NO_STALENESS, **json.loads(there)})


def test_every_option_of_cpp_has_a_field():
    table = replay.Table("t", sampler=replay.Selector("prioritized"), limit=replay.RateLimit(min_diff=-1, max_diff=1), columns={"x": "f32"})
    message = json.loads(table.to_json())
    assert set(message) == set(_core.replay_fields("ReplayTableOptions"))
    assert set(message["limit"]) == set(_core.replay_fields("ReplayLimit"))
    assert set(message["staleness"]) == set(_core.replay_fields("ReplayStaleness"))
    assert set(message["sampler"]) == set(_core.replay_fields("ReplaySelector"))
    assert set(message["columns"][0]) == set(_core.replay_fields("ReplayColumn"))
    assert {f.name for f in dataclasses.fields(replay.Table)} == {f if f != "ttl_seconds" else "ttl" for f in message}
    assert _tables.SELECTORS == ["fifo", "lifo", "uniform", "prioritized", "lowest", "highest"]
    assert _tables.DTYPES == ["u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"]


def test_a_table_keeps_its_options_and_exists_once():
    table = replay.Table(
        "t", sampler=replay.Selector("prioritized", 0.7), remover="lowest", max_items=10, max_bytes=1 << 20, max_times_sampled=3,
        limit=replay.RateLimit.ratio(2.0, 4, 8.0), columns={"o": {"image": ("u8", (2, 3)), "x": "f32"}, "a": np.int64}, seed=9,
        staleness=replay.Staleness("evict", max_lag=5), ttl=60.0,
    )  # fmt: skip
    with replay.local([table]) as client:
        found = client.table("t")
        assert replay.Table.from_message(json.loads(table.to_json())) == found
        client.create_table(table)
        with pytest.raises(tandem.errors.AlreadyExistsError, match="other options"):
            client.create_table(dataclasses.replace(table, seed=8))
        client.create_table(replay.Table.queue("u", 3))
        assert client.tables() == ["t", "u"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: replay.Table("t", sampler="best").to_json(), "'best'; it must be one of fifo, lifo"),
        (lambda: replay.Table("t", sampler=3).to_json(), "or a Selector"),
        (lambda: replay.Table.queue("t", -1), "size is -1"),
        (lambda: replay.Table.queue("t", 1.5), "size is 1.5"),
        (lambda: replay.Table("t", staleness=replay.Staleness("often")).to_json(), "'often'"),
        (lambda: replay.Table("t", columns={"x": "f12"}).to_json(), "column 'x' of table 't' has dtype f12"),
        (lambda: replay.Table("t", columns={"x": ("f32", (0,))}).to_json(), "1 or more"),
        (lambda: replay.Table("t", columns={"x/y": "f32"}).to_json(), "'x/y'"),
        (lambda: replay.Table("t", columns={"x": np.uint16}).to_json(), "convert it"),
        (lambda: replay.local([replay.Table("")]), "letters, digits"),
        (lambda: replay.local([replay.Table("t", max_items=0)]), "max_items"),
        (lambda: replay.local([replay.Table("t", max_items=-1)]), "malformed"),
        (lambda: replay.local([replay.Table("t", sampler=replay.Selector("prioritized", float("nan")))]), "exponent"),
        (lambda: replay.local([replay.Table("t", limit=replay.RateLimit(min_diff=0.0, max_diff=0.5))]), "window|diff"),
        (lambda: replay.local(["t"]), "must be a tandem.replay.Table"),
    ],
)
def test_a_wrong_option_is_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_limits_change_while_the_table_is_in_use():
    with replay.local([replay.Table.queue("q", 1)], timeout=30) as client, client.writer(chunk_steps=1) as writer:
        for x in range(2):
            writer.append({"x": x})
            try:
                writer.create_item("q", writer.last(1), timeout=0)
            except TimeoutError as error:
                assert x == 1 and "max_diff 1" in str(error)
        assert client.info("q")["items"] == 1 and writer.pending_items == 1
        assert any("takes no inserts" in reason for reason in client.why("q"))
        client.set_limits("q", limit=replay.RateLimit.queue(5), max_items=5)
        writer.flush()
        assert client.info("q")["items"] == 2 and writer.pending_items == 0
        assert client.table("q").limit == replay.RateLimit.queue(5)
        assert [item["steps"] for item in client.peek("q")] == [[1], [1]]
        assert client.reset("q") == 2 and client.peek("q") == []
        assert client.info("q")["removed_by_reset"] == 2


def test_an_unknown_table_is_an_error_that_lists_the_others():
    with replay.local([replay.Table.queue("q", 1)], timeout=30) as client:
        calls = [
            lambda: client.info("p"), lambda: client.sample("p"), lambda: client.update_priorities("p", [1], [1.0]), lambda: client.reset("p"),
            lambda: client.admit("p"), lambda: client.commit("p", 1), lambda: client.sampler("p").next(), lambda: client.why("p"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(LookupError, match="there are: q"):
                call()
