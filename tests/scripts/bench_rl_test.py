# SPDX-License-Identifier: Apache-2.0
"""Tests of bench/rl, which writes the measured table and the plots of docs/performance/rl.md."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    loader = importlib.machinery.SourceFileLoader("bench_rl", str(ROOT / "bench" / "rl"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_rl", loader))
    loader.exec_module(module)
    return module


def report(algorithm, mean):
    curve = [{"env_steps": 1000 * part, "mean_return": mean * part / 100} for part in range(1, 101)]
    return {"algorithm": algorithm, "env_steps": 100000, "evaluation": {"mean": mean}, "curve": curve}


class BenchRlTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "docs" / "performance").mkdir(parents=True)
        shutil.copytree(ROOT / "jobs", self.root / "jobs")
        shutil.copy(ROOT / "docs" / "performance" / "rl.md", self.root / "docs" / "performance")
        for path in (ROOT / "docs" / "performance").glob("rl_*"):
            shutil.copy(path, self.root / "docs" / "performance")
        self.module = load()
        self.module.ROOT = self.root
        self.module.summary.machine = lambda: {"cpu": "a processor", "cores": 2, "system": "Linux"}

    def run_jobs(self, *arguments):
        with unittest.mock.patch.object(sys, "argv", ["bench/rl", *arguments]), contextlib.redirect_stdout(io.StringIO()):
            self.module.main()

    def files(self):
        return {path.name: path.read_text(encoding="utf-8") for path in self.root.glob("docs/**/rl*")}

    def test_one_job_alone_changes_its_row_and_the_plot_of_its_environment(self):
        keep = self.root / "keep"
        keep.mkdir()
        (keep / "catch_dqn.json").write_text(json.dumps({"runs": [report("dqn", 0.5), report("dqn", 0.7)]}))
        (keep / "catch_dqn.measured").write_text("yesterday")
        before = self.files()
        self.run_jobs("--keep", str(keep), "--reuse", "catch_dqn")
        after = self.files()
        old, new = before["rl.md"].splitlines(), after["rl.md"].splitlines()
        self.assertEqual(len(old), len(new))
        changed = [line for was, line in zip(old, new) if was != line]
        self.assertEqual(changed, ["| `catch_dqn` | 100,000 | 0.60 ± 0.14 | 0.50, 0.70 | 0.99 | yesterday |",
                                   "*The last of them on a processor, 2 cores, Linux.*"])
        self.assertEqual({name for name in before if before[name] != after[name]}, {"rl.md", "rl_curves.json", "rl_catch.svg"})
        for name in (">PPO<", ">DQN<"):
            self.assertIn(name, after["rl_catch.svg"])
        was, now = json.loads(before["rl_curves.json"]), json.loads(after["rl_curves.json"])
        self.assertEqual(now["catch_dqn"][-1], [100000, 0.5, 0.6, 0.7])
        self.assertEqual({job: curve for job, curve in now.items() if was.get(job) != curve}, {"catch_dqn": now["catch_dqn"]})

    def test_a_job_that_the_page_does_not_show_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "docs/performance/rl.md does not show bandit"):
            self.run_jobs("bandit")

    def test_the_page_has_a_row_and_a_curve_of_each_job(self):
        text = (ROOT / "docs" / "performance" / "rl.md").read_text(encoding="utf-8")
        table = text[text.index(self.module.BEGIN):text.index(self.module.END)]
        self.assertEqual(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE), self.module.JOBS)
        curves = json.loads((ROOT / "docs" / "performance" / "rl_curves.json").read_text(encoding="utf-8"))
        self.assertEqual(list(curves), self.module.JOBS)
        for environment in {job.split("_")[0] for job in self.module.JOBS}:
            self.assertIn(f"(rl_{environment}.svg)", table)
            self.assertTrue((ROOT / "docs" / "performance" / f"rl_{environment}.svg").exists())

    def test_each_row_has_what_was_wanted(self):
        text = (ROOT / "docs" / "performance" / "rl.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([-\d.]+)[^|]*\|[^|]*\| ([-\d.]+) \|[^|]+\|$", text, re.MULTILINE)
        self.assertEqual([job for job, _, _ in rows], self.module.JOBS)
        for job, mean, wanted in rows:
            self.assertGreaterEqual(float(mean), float(wanted), job)


if __name__ == "__main__":
    unittest.main()
