# SPDX-License-Identifier: Apache-2.0
"""Runs examples/python/clicks.py, which `scripts/quickstart --python` starts, on a small generated file."""

import pathlib
import re
import subprocess
import sys

from processes import DEADLINE_S, Process, tandem_binary

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "clicks.py"


def write_clicks(path: pathlib.Path, rows: int) -> None:
    command = [tandem_binary(), "data", "planted", "--rows", str(rows), "--sparse", "6", "--dense", "0", "--max-vocabulary", "100",
               "--interaction-stddev", "1.5", "--out", str(path)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)


def test_the_example_beats_logistic_regression_and_reports_as_tandem_train_does(tmp_path):
    write_clicks(tmp_path / "clicks.csv", 20000)
    command = [tandem_binary(), "run", "--ps", "2", "--workers", "2", "--log-dir", str(tmp_path / "logs"), "--",
               sys.executable, "-B", str(EXAMPLE), str(tmp_path / "clicks.csv"), "--epochs", "3", "--batch-size", "128"]  # fmt: skip
    with Process(command) as job:
        assert job.wait() == 0, job.output
    assert re.search(r"epoch 3/3  train loss 0\.\d{4}  valid AUC 0\.\d{4}  logloss 0\.\d{4}  \d+ samples/s", job.output), job.output
    auc = {name: float(value) for name, value in re.findall(r"  (\S[^\n]*?) {2,}(0\.\d{4}) +0\.\d{4}", job.output)}
    ours = auc["tandem deepfm in PyTorch (epoch 3)"]
    assert auc["logistic regression in PyTorch"] + 0.03 < ours < auc["best possible (the planted model)"] + 0.02, job.output


def test_the_example_splits_the_data_as_tandem_train_does(tmp_path):
    write_clicks(tmp_path / "clicks.csv", 2000)
    script = f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import clicks\n" \
             f"print(*(len(clicks.read({str(tmp_path / 'clicks.csv')!r})[s][1]) for s in ('train', 'test')))"  # fmt: skip
    sizes = subprocess.run([sys.executable, "-B", "-c", script], check=True, capture_output=True, text=True, timeout=120).stdout
    job = tmp_path / "job.yaml"
    job.write_text(
        f"name: same\n"
        f"data: {{format: csv, train: {tmp_path / 'clicks.csv'}, split: {{valid: 0.1, test: 0.1, seed: 1}}, "
        f"label: click, sparse: [c1, c2]}}\n"
        f"model: {{kind: lr}}\nwide: {{optimizer: {{kind: sgd, lr: 0.1}}}}\ntrain: {{mode: sync, epochs: 1}}\n"
        f"checkpoint: {{dir: {tmp_path / 'runs'}}}\n")
    with Process([tandem_binary(), "train", str(job), "--no-baselines", "--predictions", str(tmp_path / "test.tsv")]) as process:
        assert process.wait() == 0, process.output
    train, test = map(int, sizes.split())
    assert f"on {train} examples" in process.output, process.output
    assert len((tmp_path / "test.tsv").read_text().splitlines()) == test
