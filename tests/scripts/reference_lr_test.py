# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/reference_lr.py against definitions written out."""

import contextlib
import io
import json
import math
import pathlib
import random
import tempfile
import unittest

import reference_lr


def auc_by_pairs(labels, scores):
    wins = total = 0
    for label, score in zip(labels, scores):
        for other, other_score in zip(labels, scores):
            if label > other:
                total += 1
                wins += 1 if score > other_score else 0.5 if score == other_score else 0
    return wins / total


class MetricsTest(unittest.TestCase):
    def test_auc_is_the_share_of_pairs_in_order_with_ties_as_half(self):
        generator = random.Random(7)
        for _ in range(50):
            labels = [0, 1] + [generator.randrange(2) for _ in range(30)]
            scores = [generator.randrange(8) / 8 for _ in labels]
            self.assertAlmostEqual(reference_lr.auc(labels, scores), auc_by_pairs(labels, scores))

    def test_auc_needs_both_labels(self):
        with self.assertRaisesRegex(reference_lr.ReferenceError, "3 positives and 0 negatives"):
            reference_lr.auc([1, 1, 1], [0.1, 0.2, 0.3])

    def test_logloss_is_the_mean_of_minus_log_of_what_happened(self):
        self.assertAlmostEqual(reference_lr.logloss([1, 0], [0.25, 0.2]),
                               -(math.log(0.25) + math.log(0.8)) / 2)
        self.assertLess(reference_lr.logloss([1], [0.0]), 40)


class LogisticRegressionTest(unittest.TestCase):
    def test_without_penalty_one_field_gives_each_level_its_own_rate(self):
        levels = [0] * 10 + [1] * 10
        labels = [1] * 2 + [0] * 8 + [1] * 7 + [0] * 3
        model = reference_lr.LogisticRegression(l2=1e-6, tolerance=1e-9).fit([levels], labels)
        self.assertAlmostEqual(model.predict([[0, 1]])[0], 0.2, places=5)
        self.assertAlmostEqual(model.predict([[0, 1]])[1], 0.7, places=5)

    def test_the_solution_has_a_lower_loss_than_its_neighbours(self):
        generator = random.Random(3)
        fields = [[generator.randrange(4) for _ in range(200)] for _ in range(3)]
        labels = [int(generator.random() < 0.2 + 0.15 * level) for level in fields[0]]
        model = reference_lr.LogisticRegression(l2=0.7, tolerance=1e-9).fit(fields, labels)

        def loss(weights):
            total = 0.35 * sum(w * w for w in weights[1:])
            for row, label in zip(zip(*fields), labels):
                score = weights[0] + sum(weights[1 + 4 * f + level] for f, level in enumerate(row))
                total += math.log1p(math.exp(-score if label else score))
            return total

        best = loss(model.weights)
        for i in range(len(model.weights)):
            for change in (-1e-3, 1e-3):
                moved = list(model.weights)
                moved[i] += change
                self.assertGreater(loss(moved), best)

    def test_a_level_unseen_in_training_counts_nothing(self):
        model = reference_lr.LogisticRegression(l2=1).fit([[0, 1, 0, 1]], [1, 0, 0, 1])
        self.assertAlmostEqual(model.predict([[9]])[0], reference_lr.sigmoid(model.weights[0]))


class SplitTest(unittest.TestCase):
    def test_the_hash_is_that_of_base_random(self):
        # Values of HashBytes in base/random.cc.
        self.assertEqual(reference_lr.hash_line(b"", 0), 12035550249420947055)
        self.assertEqual(reference_lr.hash_line(b"12345678", 1), 10668896943856672319)
        self.assertEqual(reference_lr.hash_line(b"insteval,1", 42), 16262209945195920818)

    def test_shares_are_those_asked_for(self):
        splits = [reference_lr.hashed_split(b"row %d" % i, 3, 0.2, 0.1) for i in range(5000)]
        self.assertAlmostEqual(splits.count("valid") / 5000, 0.2, delta=0.03)
        self.assertAlmostEqual(splits.count("test") / 5000, 0.1, delta=0.02)


class CommandTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def run_main(self, *arguments):
        self.stderr = io.StringIO()
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(self.stderr):
            status = reference_lr.main(list(arguments))
        return json.loads(stdout.getvalue()) if status == 0 else None

    def test_metrics_of_a_file(self):
        result = self.run_main("metrics", self.write("p.tsv", "1\t0.8\n0\t0.3\n1\t0.3\n"))
        self.assertEqual(result["auc"], 0.75)

    def test_a_bad_line_is_named(self):
        self.assertIsNone(self.run_main("metrics", self.write("p.tsv", "1\t0.8\n0\t1.3\n")))
        self.assertIn("p.tsv:2:", self.stderr.getvalue())

    def test_the_split_of_the_file_is_followed(self):
        rows = [(u, u % 2) for u in (1, 2, 3, 4)] * 3
        data = self.write("d.csv", "u,y\n" + "".join(f"{u},{y}\n" for u, y in rows))
        names = ["train"] * 4 + ["valid"] * 4 + ["test"] * 4
        split = self.write("s.tsv", "".join(f"{i}\t{n}\n" for i, n in reversed(
            list(enumerate(names)))))
        result = self.run_main("train", data, "--features", "u", "--threshold", "1", "--l2", "1",
                               "--split-file", split)
        self.assertEqual([result[n]["rows"] for n in reference_lr.SPLITS], [4, 4, 4])
        self.assertEqual(result["test"]["auc"], 1.0)

    def test_a_missing_column_is_named(self):
        self.assertIsNone(self.run_main("train", self.write("d.csv", "u,y\n1,1\n"),
                                        "--features", "u", "item"))
        self.assertIn("no column item", self.stderr.getvalue())


if __name__ == "__main__":
    unittest.main()
