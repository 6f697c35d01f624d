# SPDX-License-Identifier: Apache-2.0
"""Runs scripts/gpu_check as in an unpacked bundle, whose programs are stubs."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"
PROGRAMS = ["tandem", "tandem-inspect", "nccl_backend_test", "nccl_gpu_test", "nccl_all_reduce", "ps_client_gpu_test", "ps_gpu_test"]


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.bundle = self.root / "gpu_check"
        shutil.copytree(SCRIPT.parent, self.bundle, ignore=lambda _, names: [n for n in names if n != "gpu_check"])
        (self.bundle / "VERSION").write_text("commit 0123\nglibc 2.36\n")
        for program in PROGRAMS:
            self.stub(self.bundle / "bin" / program, f"echo {program} has run")
        # No torch, and a GPU that works.
        self.stub(self.root / "path" / "python3", "exit 77")
        self.stub(self.root / "path" / "nvidia-smi", "echo one GPU")

    def stub(self, path, script):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run_check(self):
        """Returns the exit code, the report and stderr."""
        report = self.root / "report.md"
        done = subprocess.run(
            [self.bundle / "gpu_check", "--run", report], capture_output=True, text=True, timeout=100,
            env={**os.environ, "PATH": f"{self.root / 'path'}:{os.environ['PATH']}"},
        )
        return done.returncode, report.read_text() if report.exists() else "", done.stderr

    def test_a_machine_with_all_that_is_needed_gets_a_whole_report(self):
        code, report, _ = self.run_check()
        self.assertEqual(code, 0, report)
        for text in ["commit 0123", "one GPU", "nccl_backend_test has run", "ps_gpu_test has run", "two ranks on one GPU", "Skipped.", "All steps passed"]:
            self.assertIn(text, report)

    def test_what_is_missing_is_named_and_nothing_else_runs(self):
        self.stub(self.bundle / "bin" / "nccl_gpu_test", "echo 'FAILED_PRECONDITION: libnccl.so.2 not found'; echo '[  SKIPPED ]'")
        code, report, _ = self.run_check()
        self.assertEqual(code, 77, report)
        self.assertIn("libnccl.so.2 not found", report)
        self.assertNotIn("All-reduce", report)

    def test_a_failed_step_fails_the_check_and_the_others_run(self):
        self.stub(self.bundle / "bin" / "nccl_backend_test", "echo broken; exit 3")
        code, report, _ = self.run_check()
        self.assertEqual(code, 1, report)
        for text in ["Failed with exit code 3", "two ranks on one GPU", "A step failed"]:
            self.assertIn(text, report)

    def test_a_rank_that_fails_fails_its_step(self):
        self.stub(self.bundle / "bin" / "nccl_all_reduce", 'test "$1" != 1')
        code, report, _ = self.run_check()
        self.assertEqual(code, 1, report)

    def test_a_program_that_is_not_packed_is_named(self):
        (self.bundle / "bin" / "nccl_all_reduce").unlink()
        code, _, stderr = self.run_check()
        self.assertEqual(code, 1)
        self.assertIn("program nccl_all_reduce not found", stderr)

    def test_programs_that_do_not_run_here_are_reported_with_the_reason(self):
        self.stub(self.bundle / "bin" / "tandem", "echo \"version 'GLIBC_2.36' not found\" >&2; exit 1")
        code, report, _ = self.run_check()
        self.assertEqual(code, 77, report)
        self.assertIn("GLIBC_2.36", report)
        self.assertIn("glibc 2.36 or later", report)


if __name__ == "__main__":
    unittest.main()
