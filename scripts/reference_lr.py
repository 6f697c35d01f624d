# SPDX-License-Identifier: Apache-2.0
"""A second implementation of AUC, logloss and logistic regression, independent of the C++ code.

    reference_lr.py metrics PREDICTIONS.tsv
        AUC and logloss of lines `label<TAB>probability` (label 0 or 1).

    reference_lr.py train DATA.csv [--split-file ROWS.tsv] [--l2 X ...]
        Logistic regression on one-hot categorical columns, to full convergence. The split
        comes from a file of lines `row<TAB>split` (rows count from 0 after the header), or from a
        column `split` of the CSV (train, valid or test). Without both it is that of Tandem's jobs:
        a hash of the line with the job's data.split.seed. Of several --l2 values the one with the
        best AUC on valid is used. Training minimises this sum over the training rows, where w
        excludes the bias:

            sum of log(1 + exp(-y * score))  +  l2 / 2 * |w|^2,      y = -1 or 1

Python standard library only. Each result is one JSON object on stdout.
"""

import argparse
import csv
import itertools
import json
import math
import sys

SPLITS = ("train", "valid", "test")
PROBABILITY_FLOOR = 1e-15


class ReferenceError(Exception):
    """The input is not as expected."""


def auc(labels, scores):
    """Returns P(a positive scores above a negative); a tie counts half (exact, by ranks)."""
    order = sorted(range(len(scores)), key=scores.__getitem__)
    rank_sum, below = 0.0, 0
    for _, group in itertools.groupby(order, key=scores.__getitem__):
        group = list(group)
        mean_rank = below + (len(group) + 1) / 2
        rank_sum += mean_rank * sum(labels[i] for i in group)
        below += len(group)
    positives = sum(labels)
    negatives = len(labels) - positives
    if not positives or not negatives:
        raise ReferenceError("AUC needs both labels: found "
                             f"{positives} positives and {negatives} negatives")
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def logloss(labels, probabilities):
    """Returns the mean negative log likelihood; probabilities are clipped at 1e-15 from 0 and 1."""
    def loss(label, p):
        p = min(max(p, PROBABILITY_FLOOR), 1 - PROBABILITY_FLOOR)
        return -math.log(p if label else 1 - p)

    return math.fsum(map(loss, labels, probabilities)) / len(labels)


def sigmoid(x):
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    e = math.exp(x)
    return e / (1 + e)


def metrics(labels, probabilities):
    return {"rows": len(labels), "mean_label": round(sum(labels) / len(labels), 6),
            "auc": round(auc(labels, probabilities), 6),
            "logloss": round(logloss(labels, probabilities), 6)}


class LogisticRegression:
    """A bias and, for each categorical field, one weight per level.

    Newton's method; each step's linear system is solved by conjugate gradients, preconditioned
    with the diagonal, and halved where it would not lower the loss. The loss is strictly convex:
    what is reached is the optimum, whatever the seed, learning rate or order of rows of others.
    """

    def __init__(self, l2, tolerance=1e-3, max_steps=50):
        self.l2, self.tolerance, self.max_steps = l2, tolerance, max_steps
        self.steps = 0
        self.starts = []  # Index of each field's first level in `weights`; 0 is the bias.
        self.weights = []

    def fit(self, fields, labels):
        """fields: one list per field of level numbers per row; levels count from 0.

        Ends when no component of the gradient of the sum over rows exceeds the tolerance.
        """
        self.starts = list(itertools.accumulate((max(levels) + 1 for levels in fields), initial=1))
        # Per row the indices of its weights: the bias, and one level of each field.
        rows = [(0, *(start + level for start, level in zip(self.starts, row)))
                for row in zip(*fields)]
        size = self.starts.pop()
        penalty = [0.0] + [self.l2] * (size - 1)
        weights = [0.0] * size
        loss = self._loss(rows, labels, weights)
        for self.steps in range(self.max_steps):
            probabilities = [sigmoid(sum([weights[i] for i in row])) for row in rows]
            residuals = [p - label for p, label in zip(probabilities, labels)]
            gradient = _scatter(rows, residuals, [a * w for a, w in zip(penalty, weights)])
            if max(map(abs, gradient)) <= self.tolerance:
                self.weights = weights
                return self
            curvature = [p * (1 - p) for p in probabilities]
            step = _solve(rows, curvature, penalty, gradient)
            scale = 1.0
            while True:
                moved = [w - scale * s for w, s in zip(weights, step)]
                moved_loss = self._loss(rows, labels, moved)
                if moved_loss <= loss or scale < 1e-6:
                    break
                scale /= 2
            weights, loss = moved, moved_loss
        raise ReferenceError(f"no convergence in {self.max_steps} Newton steps")

    def _loss(self, rows, labels, weights):
        total = self.l2 / 2 * math.fsum(w * w for w in weights[1:])
        for row, label in zip(rows, labels):
            x = sum([weights[i] for i in row])
            total += max(x, 0.0) - x * label + math.log1p(math.exp(-abs(x)))
        return total

    def predict(self, fields):
        """Returns probabilities; a level that does not occur in training contributes nothing."""
        ends = [*self.starts[1:], len(self.weights)]

        def score(row):
            total = self.weights[0]
            for start, end, level in zip(self.starts, ends, row):
                total += self.weights[start + level] if start + level < end else 0.0
            return sigmoid(total)

        return [score(row) for row in zip(*fields)]


def _scatter(rows, values, onto):
    """Returns onto + X' values, where row r of X has ones at rows[r]."""
    for row, value in zip(rows, values):
        for i in row:
            onto[i] += value
    return onto


def _dot(a, b):
    return sum(map(float.__mul__, a, b))


def _solve(rows, curvature, penalty, right, accuracy=1e-3, max_iterations=500):
    """Solves for x: (X' diag(curvature) X + diag(penalty)) x = right, to `accuracy` of its norm."""
    diagonal = _scatter(rows, curvature, list(penalty))
    x = [0.0] * len(right)
    residual = list(right)
    scaled = [r / d for r, d in zip(residual, diagonal)]
    direction, progress = scaled, _dot(residual, scaled)
    goal = accuracy * accuracy * progress
    for _ in range(max_iterations):
        if progress <= goal:
            break
        along = [c * sum([direction[i] for i in row]) for c, row in zip(curvature, rows)]
        image = _scatter(rows, along, [a * d for a, d in zip(penalty, direction)])
        length = progress / _dot(direction, image)
        x = [v + length * d for v, d in zip(x, direction)]
        residual = [r - length * m for r, m in zip(residual, image)]
        scaled = [r / d for r, d in zip(residual, diagonal)]
        progress, before = _dot(residual, scaled), progress
        direction = [s + progress / before * d for s, d in zip(scaled, direction)]
    return x


_MASK = 2**64 - 1


def _mix(x):
    """SplitMix64's finaliser."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def hash_line(line, seed):
    """Returns the seeded hash that determines a line's split: 8 bytes at a time, little endian."""
    h = _mix(_mix(seed) ^ (len(line) * 0xFF51AFD7ED558CCD & _MASK))
    for start in range(0, len(line), 8):
        h = _mix(h ^ int.from_bytes(line[start:start + 8], "little"))
    return h


def hashed_split(line, seed, valid, test):
    """Returns the split of a line (bytes, without its end); `valid` and `test` are fractions."""
    share = (hash_line(line, seed) >> 11) * 2.0**-53
    return "test" if share < test else "valid" if share < test + valid else "train"


def read_split_file(path, rows):
    splits = [None] * rows
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            parts = line.rstrip("\n").split("\t")
            if len(parts) != 2 or not parts[0].isdigit() or parts[1] not in SPLITS:
                raise ReferenceError(f"{path}:{number}: 'row<TAB>train|valid|test' expected")
            row = int(parts[0])
            if row >= rows or splits[row] is not None:
                raise ReferenceError(f"{path}:{number}: row {row} is beyond the data or said twice")
            splits[row] = parts[1]
    return splits


def read_data(options):
    """Returns {split: (fields, labels)}; levels of training rows get the first numbers."""
    with open(options.data, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        wanted = [*options.features, options.label]
        lacking = [name for name in wanted if name not in (reader.fieldnames or ())]
        if lacking:
            raise ReferenceError(f"{options.data} has no column {', '.join(lacking)}")
        rows = list(reader)
    if options.split_file:
        splits = read_split_file(options.split_file, len(rows))
    elif rows and "split" in rows[0]:
        splits = [row["split"] for row in rows]
    else:
        with open(options.data, "rb") as file:
            lines = file.read().splitlines()[1:]
        if len(lines) != len(rows):
            raise ReferenceError(f"{options.data} has fields with line ends: give --split-file")
        splits = [hashed_split(line, options.seed, options.valid, options.test) for line in lines]
    number = [{} for _ in options.features]
    data = {}
    for split in SPLITS:
        part = [row for row, where in zip(rows, splits) if where == split]
        labels = [int(float(row[options.label]) >= options.threshold) for row in part]
        fields = [[levels.setdefault(row[name], len(levels)) for row in part]
                  for name, levels in zip(options.features, number)]
        if not part:
            raise ReferenceError(f"no row of {options.data} is in the split '{split}'")
        data[split] = (fields, labels)
    return data


def train(options):
    data = read_data(options)
    best = None
    for l2 in options.l2:
        model = LogisticRegression(l2).fit(*data["train"])
        results = {split: metrics(labels, model.predict(fields))
                   for split, (fields, labels) in data.items()}
        print(f"l2 {l2:g}: {model.steps} Newton steps, valid AUC {results['valid']['auc']:.4f}",
              file=sys.stderr)
        if best is None or results["valid"]["auc"] > best["valid"]["auc"]:
            best, best_model = {"l2": l2, "newton_steps": model.steps, **results}, model
    if options.predictions:
        fields, labels = data["test"]
        with open(options.predictions, "w", encoding="utf-8") as file:
            file.writelines(f"{label}\t{p!r}\n"
                            for label, p in zip(labels, best_model.predict(fields)))
    return best


def read_predictions(path):
    labels, probabilities = [], []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                label, probability = map(float, line.split("\t"))
            except ValueError:
                raise ReferenceError(f"{path}:{number}: 'label<TAB>probability' expected") from None
            if label not in (0, 1) or not 0 <= probability <= 1:
                raise ReferenceError(f"{path}:{number}: a label of 0 or 1 and a probability "
                                     f"within [0, 1] expected, {line.strip()!r} found")
            labels.append(int(label))
            probabilities.append(probability)
    if not labels:
        raise ReferenceError(f"{path} is empty")
    return labels, probabilities


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    command = commands.add_parser("metrics")
    command.add_argument("predictions")
    command = commands.add_parser("train")
    command.add_argument("data")
    command.add_argument("--features", nargs="+",
                         default=["s", "d", "dept", "service", "studage", "lectage"])
    command.add_argument("--label", default="y")
    command.add_argument("--threshold", type=float, default=4, help="positive from here on")
    command.add_argument("--l2", nargs="+", type=float, default=[2, 4, 8])
    command.add_argument("--split-file", help="lines row<TAB>train|valid|test")
    command.add_argument("--seed", type=int, default=1, help="data.split.seed of the job")
    command.add_argument("--valid", type=float, default=0.1, help="data.split.valid of the job")
    command.add_argument("--test", type=float, default=0.1, help="data.split.test of the job")
    command.add_argument("--predictions", help="write label<TAB>probability of the test rows here")
    options = parser.parse_args(arguments)
    try:
        if options.command == "metrics":
            result = metrics(*read_predictions(options.predictions))
        else:
            result = train(options)
    except (ReferenceError, OSError) as error:
        print(f"reference_lr: error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
