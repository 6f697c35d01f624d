# SPDX-License-Identifier: Apache-2.0
"""Runs examples/python/insteval.py, which `scripts/quickstart --python` starts, on a small generated file."""

import pathlib
import random
import re
import subprocess
import sys

from processes import Process, tandem_binary

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "insteval.py"


def write_ratings(path: pathlib.Path, rows: int) -> None:
    """Writes ratings that depend on the student and the lecturer only."""
    generator = random.Random(1)
    lines = ["s,d,studage,lectage,service,dept,y"]
    for _ in range(rows):
        s, d = generator.randrange(40), generator.randrange(40)
        y = 5 if (s % 2) + (d % 2) + generator.random() > 1.5 else 2
        lines.append(f"{s},{d},{generator.randrange(4)},{generator.randrange(4)},{generator.randrange(2)},{generator.randrange(10)},{y}")
    path.write_text("\n".join(lines) + "\n")


def test_the_example_learns_and_reports_as_tandem_train_does(tmp_path):
    write_ratings(tmp_path / "ratings.csv", 6000)
    command = [tandem_binary(), "run", "--ps", "2", "--workers", "2", "--log-dir", str(tmp_path / "logs"), "--",
               sys.executable, "-B", str(EXAMPLE), str(tmp_path / "ratings.csv"), "--epochs", "3", "--batch-size", "128"]
    with Process(command) as job:
        assert job.wait() == 0, job.output
    report = r"epoch 3/3  train loss 0\.\d{4}  valid AUC (0\.\d{4})  logloss 0\.\d{4}  \d+ samples/s"
    assert (match := re.search(report, job.output)), job.output
    assert float(match[1]) > 0.8  # at most 0.875: the ratings are partly random
    assert re.search(r"tandem deepfm in PyTorch \(epoch 3\) +0\.\d{4} +0\.\d{4}", job.output), job.output


def test_the_example_splits_the_data_as_tandem_train_does(tmp_path):
    write_ratings(tmp_path / "ratings.csv", 2000)
    script = f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import insteval\n" \
             f"print(*(len(labels) for _, labels in insteval.read({str(tmp_path / 'ratings.csv')!r}).values()))"
    sizes = subprocess.run([sys.executable, "-B", "-c", script], check=True, capture_output=True, text=True, timeout=120).stdout
    job = tmp_path / "job.yaml"
    job.write_text(
        f"name: same\n"
        f"data: {{format: csv, train: {tmp_path / 'ratings.csv'}, split: {{valid: 0.1, test: 0.1, seed: 1}}, "
        f"label: {{column: y, threshold: 4}}, sparse: [s, d]}}\n"
        f"model: {{kind: lr}}\nwide: {{optimizer: {{kind: sgd, lr: 0.1}}}}\ntrain: {{mode: sync, epochs: 1}}\n"
        f"checkpoint: {{dir: {tmp_path / 'runs'}}}\n")
    with Process([tandem_binary(), "train", str(job), "--no-baselines", "--predictions", str(tmp_path / "test.tsv")]) as process:
        assert process.wait() == 0, process.output
    train, _, test = map(int, sizes.split())
    assert f"on {train} examples" in process.output, process.output
    assert len((tmp_path / "test.tsv").read_text().splitlines()) == test
