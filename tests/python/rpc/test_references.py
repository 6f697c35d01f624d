# SPDX-License-Identifier: Apache-2.0
"""References to values in other processes."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
from processes import wait_until

from tandem import rpc
from tandem.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, NotFoundError


@rpc.function
def total(values: rpc.Reference) -> int:
    return sum(values.local_value())


def test_an_object_lives_at_its_owner_and_goes_with_the_last_reference(worker):
    counter = worker.remote("worker", "Counter", 5)
    assert counter.owner == "worker" and not counter.is_owner
    assert counter.call("add", 3) == 8
    assert counter.call("add", amount=1) == 9
    assert worker.call("worker", "add_to", counter, 1) == 10
    assert worker.call("worker", "counts")["alive"] == 1
    with pytest.raises(InvalidArgumentError, match="its result cannot be sent: a .*Counter"):
        counter.to_here()
    with pytest.raises(FailedPreconditionError, match="lives at worker"):
        counter.local_value()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(counter)
    del counter
    gc.collect()
    wait_until(lambda: worker.call("worker", "counts")["alive"] == 0, "the end of the object")


def test_only_public_methods_of_registered_classes_are_called(worker):
    counter = worker.remote("worker", "Counter", 5)
    for method in ["_private", "__init__", "value", "nonsense"]:
        with pytest.raises(NotFoundError, match=f"a Counter has no method '{method}'; it has add"):
            counter.call(method)
    plain = worker.remote("worker", "make_plain")
    with pytest.raises(InvalidArgumentError, match="the value is a Plain, which is not registered here"):
        plain.call("method")


def test_a_result_stays_until_it_is_fetched(worker):
    there = worker.remote("worker", "add", np.ones(3), 1)
    np.testing.assert_array_equal(there.to_here(), np.full(3, 2.0))
    np.testing.assert_array_equal(there.to_here_async().result(), np.full(3, 2.0))


def test_a_value_of_this_process_is_used_by_another(worker):
    mine = worker.own([1, 2, 3])
    assert mine.is_owner and mine.owner == "test"
    assert mine.local_value() is mine.local_value()
    assert mine.to_here() == [1, 2, 3]
    assert mine.call(total) == 6
    assert worker.call("worker", "relay", "test", "total", mine) == 6
    theirs = worker.call("worker", "own_list")
    assert theirs.owner == "worker" and theirs.to_here() == [1, 2, 3]
    here = worker.remote("test", "subtract_of_references", 3)
    assert here.local_value(timeout=30) == 2


@rpc.function
def subtract_of_references(value: int) -> int:
    return value - 1


def test_another_process_keeps_a_reference_alive(worker):
    counter = worker.remote("worker", "Counter", 0)
    worker.call("worker", "hold", counter)
    del counter
    gc.collect()
    assert worker.call("worker", "use_held", 4) == 4
    worker.call("worker", "let_go")
    wait_until(lambda: worker.call("worker", "counts")["alive"] == 0, "the end of the object")


def test_the_error_of_the_creation_is_raised_where_the_value_is_used(worker):
    failed = worker.remote("worker", "fail", "ValueError", "no such luck")
    with pytest.raises(ValueError, match="no such luck"):
        failed.to_here()
    with pytest.raises(ValueError, match="no such luck"):
        worker.call("worker", "add_to", failed, 1)
    nowhere = worker.remote("nobody", "add", 1, 2, timeout=0.2)
    with pytest.raises(DeadlineExceededError, match="nobody"):
        nowhere.to_here()
