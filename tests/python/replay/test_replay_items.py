# SPDX-License-Identifier: Apache-2.0
"""Steps that are written come back as items, compared with an obvious model."""

import os
import random

import numpy as np
import pytest

import tandem
from tandem import replay

DTYPES = [np.bool_, np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, np.float64]


def everything(name: str = "t") -> replay.Table:
    """Each item is sampled once, in the order of the inserts."""
    return replay.Table(name, sampler="fifo", max_times_sampled=1)


@pytest.fixture
def client():
    with replay.local([everything()], timeout=30) as client:
        yield client


def test_windows_of_any_columns_come_back_as_a_model_says(client):
    """Random episodes, windows, stacks, nested columns, chunk sizes: the model keeps all steps in a list."""
    seed = int(os.environ.get("TANDEM_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"TANDEM_TEST_SEED={seed}")
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    shapes = {"image": (2, 3), "camera/pose": (4,), "camera/inner/depth": (1, 2), "reward": ()}
    dtypes = {name: draw.choice(DTYPES) for name in shapes}
    steps: list[dict[str, np.ndarray]] = []
    firsts: list[int] = []
    expected: list[dict[str, np.ndarray]] = []
    history = draw.choice([4, 16])

    def window(length: int, skip: int, stacked: bool, across: bool) -> list[int] | None:
        end = len(steps) - skip
        if not stacked:
            reach = min(len(steps), history) if across else min(len(steps) - firsts[-1], history)
            return list(range(end - length, end)) if length + skip <= reach else None
        if end <= max(0, len(steps) - history):
            return None
        begin = max(f for f in firsts if f < end)
        if begin < len(steps) - history and end - begin < length:
            return None
        return [max(begin, i) for i in range(end - length, end)] if end - length >= len(steps) - history or begin >= len(steps) - history else None

    with client.writer(chunk_steps=draw.choice([1, 3, 8]), history_steps=history) as writer:
        for i in range(120):
            flat = {name: numbers.integers(0, 2 if dtypes[name] is np.bool_ else 100, shape).astype(dtypes[name]) for name, shape in shapes.items()}
            first = i == 0 or draw.random() < 0.1
            steps.append(flat)
            if first:
                firsts.append(i)
            nested = {
                "image": flat["image"], "reward": flat["reward"],
                "camera": {"pose": flat["camera/pose"], "inner": {"depth": np.asfortranarray(flat["camera/inner/depth"])}},
            }  # fmt: skip
            writer.append(nested, is_first=first and i > 0, policy_version=i)
            assert writer.episode_steps == i - firsts[-1] + 1
            if draw.random() < 0.4:
                continue
            columns, model = {}, {}
            length = draw.randrange(1, 5)
            for name, source in {"now": "image", "camera": "camera", "reward": "reward", "version": "policy_version", "begins": "is_first"}.items():
                skip, stacked, across = draw.randrange(3), draw.random() < 0.5, draw.random() < 0.7
                taken = writer.stack(length, skip) if stacked else writer.last(length, skip, across_episodes=across)
                wanted = window(length, skip, stacked, across)
                assert bool(taken) == (wanted is not None), (i, name, length, skip, stacked, across)
                if wanted is None:
                    break
                columns[name] = taken if name == source else (source, taken)
                for column in [c for c in shapes if c == source or c.startswith(source + "/")]:
                    model[name + column[len(source) :]] = np.stack([steps[s][column] for s in wanted])
                if source == "policy_version":
                    model[name] = np.array(wanted, np.int64)
                if source == "is_first":
                    model[name] = np.array([s in firsts for s in wanted], np.uint8)
            if len(columns) == 5:
                writer.create_item("t", columns)
                expected.append(model)
    assert len(expected) > 5 and client.info("t")["items"] == len(expected)
    for model in expected:
        batch = client.sample("t")
        assert set(batch.columns) == set(model)
        for name, values in model.items():
            stored = values.view(np.uint8) if values.dtype == np.bool_ else values
            assert batch[name].dtype == stored.dtype and batch[name].shape == (1, *stored.shape)
            np.testing.assert_array_equal(batch[name][0], stored)
        assert batch.data["camera"]["inner"]["depth"] is batch["camera/inner/depth"] and batch["camera"]["pose"] is batch["camera/pose"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(client, dtype):
    values = np.array([[0, 1], [1, 0]]).astype(dtype)
    with client.writer() as writer:
        writer.append({"x": values})
        writer.create_item("t", writer.last(1))
    stored = client.sample("t")["x"]
    assert stored.dtype == (np.uint8 if dtype is np.bool_ else dtype)
    np.testing.assert_array_equal(stored[0, 0], values)


def test_bfloat16_comes_back_as_its_bits(client):
    with client.writer(columns={"x": ("bf16", (2,))}) as writer:
        writer.append({"x": np.array([0x3F80, 0x4000], np.uint16)})  # 1 and 2
        writer.create_item("t", writer.last(1))
        assert writer.columns["x"].dtype == "bf16"
    stored = client.sample("t")["x"]
    assert stored.dtype == np.uint16 and stored[0, 0].tolist() == [0x3F80, 0x4000]


def test_numbers_are_not_taken_for_the_bits_of_bfloat16(client):
    with client.writer(columns={"x": ("bf16", (2,))}) as writer:
        for numbers in ([1, 2], [True, False], [1.0, 2.0], np.array([1, 2])):
            with pytest.raises(ValueError, match="bits of bfloat16"):
                writer.append({"x": numbers})


def test_many_steps_at_once_are_the_same_as_one_after_the_other(client):
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    firsts = [i in (0, 4) for i in range(10)]
    with client.writer() as one, client.writer() as many:
        for i in range(10):
            one.append({"x": x[i], "n": {"i": i}}, is_first=firsts[i], policy_version=i)
        many.append_steps({"x": x, "n": {"i": np.arange(10)}}, is_first=firsts, policy_version=np.arange(10))
        for writer in (one, many):
            assert writer.episode_steps == 6
            writer.create_item("t", {
                "x": (w := writer.last(10, across_episodes=True)), "n": writer.stack(8), "is_first": w, "v": ("policy_version", w),
            })  # fmt: skip
    a, b = client.sample("t"), client.sample("t")
    for name in a.columns:
        np.testing.assert_array_equal(a[name], b[name])
    assert a["x"].shape == (1, 10, 3) and a["n/i"].tolist() == [[4, 4, 4, 5, 6, 7, 8, 9]] and (a.min_versions[0], a.max_versions[0]) == (0, 9)


def test_windows_stay_in_the_current_episode_unless_asked(client):
    with client.writer(columns={"x": "i64"}, chunk_steps=1) as writer:
        for episode in range(2):
            for t in range(3):
                writer.append({"x": 10 * episode + t}, is_first=t == 0)
                assert bool(writer.last(1)) and bool(writer.last(2)) == (t > 0) and bool(writer.last(1, skip=1)) == (t > 0)
                assert bool(writer.last(3)) == (t == 2)
                if window := writer.last(3):
                    writer.create_item("t", window)
        writer.create_item("t", writer.last(4, across_episodes=True))
        assert not writer.last(7, across_episodes=True)
    assert [client.sample("t")["x"][0].tolist() for _ in range(3)] == [[0, 1, 2], [10, 11, 12], [2, 10, 11, 12]]


def test_items_of_different_lengths_are_padded(client):
    with client.writer() as writer:
        for i in range(1, 5):
            writer.append({"x": np.full(2, i, np.int32)})
            writer.create_item("t", {"x": writer.last(i), "y": ("x", writer.last(1))})
    batch = client.sample("t", 4)
    assert batch.lengths.keys() == {"x"} and batch.lengths["x"].tolist() == [1, 2, 3, 4]
    assert batch["x"][:, :, 0].tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 3, 4]]
    assert batch["y"].shape == (4, 1, 2)


def test_python_numbers_take_the_dtype_of_their_column(client):
    with client.writer(columns={"f": "f32", "i": "i32", "b": np.bool_}) as writer:
        writer.append({"f": 1, "i": 7, "b": True})
        writer.append({"f": 0.5, "i": True, "b": 0})
        for wrong, text in [({"f": 0.5, "i": 1.5, "b": 0}, "'i'"), ({"f": 0.5, "i": 1 << 40, "b": 0}, "out of the range"), ({"f": "x", "i": 1, "b": 0}, "'f'"),
                            ({"f": 1e39, "i": 1, "b": 0}, "'f'.*out of the range")]:  # fmt: skip
            with pytest.raises(ValueError, match=text):
                writer.append(wrong)
        assert writer.episode_steps == 2
        writer.create_item("t", writer.last(2))
    batch = client.sample("t")
    assert batch["f"].dtype == np.float32 and batch["f"].tolist() == [[1.0, 0.5]] and batch["i"].tolist() == [[7, 1]] and batch["b"].tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"x": np.zeros(3, np.float32)}, "columns are missing: o/y"),
        ({"x": np.zeros(3, np.float32), "o": {"y": 1, "z": 2}}, "there are no columns o/z"),
        ({"x": np.zeros(4, np.float32), "o": {"y": 1}}, r"column 'x' .* shape \(4,\); it must be \(3,\)"),
        ({"x": np.zeros(3, np.float64), "o": {"y": 1}}, "column 'x' .* dtype float64; it must be float32"),
        ({"x": np.zeros(3, np.float32), "o": {"y": np.float32(1)}}, "column 'o/y'"),
        ({"x": np.zeros(3, np.float32), "o": {"y": None}}, "column 'o/y'"),
        ({"x": np.zeros(3, np.float32), 5: 1}, "the key 5|no columns 5"),
    ],
)
def test_a_step_with_another_signature_is_refused_and_not_appended(client, step, text):
    with client.writer(chunk_steps=4) as writer:
        writer.append({"x": np.ones(3, np.float32), "o": {"y": 1}})
        with pytest.raises(tandem.errors.InvalidArgumentError, match=text):
            writer.append(step)
        writer.append({"x": np.ones(3, np.float32), "o": {"y": 2}})
        writer.create_item("t", writer.last(2))
    assert client.sample("t")["o/y"].tolist() == [[1, 2]]


def test_wrong_items_are_refused_and_the_writer_goes_on(client):
    with client.writer(history_steps=4) as writer:
        assert not writer.last(1)
        with pytest.raises(tandem.errors.FailedPreconditionError, match="no steps yet"):
            writer.create_item("t", writer.last(1))
        for i in range(6):
            writer.append({"x": i})
        old = writer.last(4)
        writer.append({"x": 6})
        wrong = [
            (lambda: writer.create_item("t", writer.last(9)), "in reach"),
            (lambda: writer.create_item("t", old), "in reach"),
            (lambda: writer.create_item("t", {"y": writer.last(1)}), "'y'"),
            (lambda: writer.create_item("t", {"x": 3}), "must be a Window"),
            (lambda: writer.create_item("t", {"x": ("x", 3)}), "must be a Window"),
            (lambda: writer.create_item("t", writer.last(1), priority=float("nan")), "priority nan"),
            (lambda: writer.create_item("t", writer.last(1), priority=-1), "priority -1"),
            (lambda: writer.create_item("t", writer.last(1), priority=float("inf")), "priority inf"),
            (lambda: writer.append_steps({"x": np.arange(3)}, policy_version=[1, 2]), "2 values for 3 steps"),
            (lambda: writer.append_steps({"x": 1}), "the same number of steps"),
            (lambda: client.writer(columns={"policy_version": "i64"}), "itself"),
            (lambda: client.writer(columns={"x": "f32"}, chunk_steps=0), "chunk_steps"),
        ]
        for call, text in wrong:
            with pytest.raises(ValueError, match=text):
                call()
        writer.create_item("t", writer.last(2))
    assert client.sample("t")["x"].tolist() == [[5, 6]] and client.info("t")["items"] == 0


def test_a_table_refuses_items_of_another_signature_and_keeps_its_own(client):
    with client.writer(chunk_steps=1) as writer, client.writer(chunk_steps=1) as other:
        writer.append({"x": np.float32(1)})
        writer.create_item("t", writer.last(1))
        other.append({"x": np.float64(1)})
        with pytest.raises(ValueError, match=r"x f32.*x f64|x f64.*x f32"):
            other.create_item("t", other.last(1))
        assert other.dropped_items == 1 and other.pending_items == 0
        with pytest.raises(LookupError, match="no table 'nope'"):
            other.create_item("nope", other.last(1))
        writer.append({"x": np.float32(2)})
        writer.create_item("t", writer.last(1))
    assert client.sample("t", 2)["x"].tolist() == [[1], [2]]


def test_leaving_a_block_by_an_exception_drops_what_was_not_delivered(client):
    with pytest.raises(ZeroDivisionError):
        with client.writer() as writer:
            writer.append({"x": 1})
            writer.create_item("t", writer.last(1))
            1 / 0
    assert client.info("t")["items"] == 0
    with pytest.raises(tandem.errors.CancelledError):
        writer.append({"x": 1})


def test_tensors_are_written_and_batches_become_tensors(client):
    torch = pytest.importorskip("torch")
    with client.writer() as writer:
        writer.append({"x": torch.arange(3.0), "a": {"y": torch.tensor(2)}})
        writer.create_item("t", writer.last(1))
        with pytest.raises(ValueError, match="bfloat16"):
            writer.append({"x": torch.zeros(3, dtype=torch.bfloat16), "a": {"y": torch.tensor(2)}})
    batch = client.sample("t")
    tensors = batch.torch()
    assert tensors["x"].tolist() == [[[0.0, 1.0, 2.0]]] and tensors["a"]["y"].dtype == torch.int64
    tensors["x"] += 1  # the memory is the batch's own
    assert batch["x"].tolist() == [[[1.0, 2.0, 3.0]]]
