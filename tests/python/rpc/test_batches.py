# SPDX-License-Identifier: Apache-2.0
"""Batched functions: one run for several calls."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tandem.errors import InvalidArgumentError


def test_calls_of_equal_shapes_share_a_run(worker):
    before = len(worker.call("worker", "batch_sizes"))
    futures = [worker.call_async("worker", "squares", np.full(2, float(i)), f"call {i}") for i in range(4)]
    for i, future in enumerate(futures):
        values, named = future.result()
        np.testing.assert_array_equal(values, np.full(2, float(i * i)))
        assert named == f"call {i}"
    assert worker.call("worker", "batch_sizes")[before:] == [4]


def test_calls_of_other_shapes_run_for_themselves(worker):
    before = len(worker.call("worker", "batch_sizes"))
    arrays = [np.ones(1), np.ones(2), np.ones(2), np.ones(2, np.float32)]
    futures = [worker.call_async("worker", "squares", array, names="x") for array in arrays]
    for array, future in zip(arrays, futures, strict=True):
        values, _ = future.result()
        assert values.shape == array.shape and values.dtype == array.dtype
    assert sorted(worker.call("worker", "batch_sizes")[before:]) == [1, 1, 2]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_tensors_are_stacked_and_dicts_are_split(worker):
    import torch

    futures = [worker.call_async("worker", "sums", torch.full((3,), i, dtype=torch.bfloat16)) for i in range(2)]
    for i, future in enumerate(futures):
        result = future.result()
        assert result["sum"].dtype == torch.bfloat16 and result["sum"].item() == 3 * i and result["dims"] == 2


def test_a_wrong_number_of_results_fails_all_calls_of_the_batch(worker):
    futures = [worker.call_async("worker", "too_few", np.ones(1)) for _ in range(2)]
    for future in futures:
        with pytest.raises(InvalidArgumentError, match="too_few has returned 1 results for a batch of 2 calls"):
            future.result()


def test_an_exception_fails_all_calls_of_the_batch(worker):
    for future in [worker.call_async("worker", "batch_fails", np.ones(1)) for _ in range(2)]:
        with pytest.raises(ValueError, match="worker: batch_fails: ValueError: the batch is bad"):
            future.result()


def test_a_call_with_bad_arguments_fails_alone(worker):
    futures = [worker.call_async("worker", "sums", np.ones(2)), worker.call_async("worker", "sums", np.ones(2), 5)]
    assert futures[0].result()["sum"] == 2
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        futures[1].result()
