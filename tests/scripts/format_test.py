# SPDX-License-Identifier: Apache-2.0
"""Checks that all C++ sources are formatted by .clang-format. `scripts/format` formats them."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLANG_FORMAT = shutil.which("clang-format-14") or shutil.which("clang-format")
FOLDERS = ["base", "bench", "cli", "collectives", "examples", "launcher", "ps", "python", "replay", "rpc", "tests", "weights", "worker"]
AT_A_TIME = 50


def sources():
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cc"))


def unformatted(paths):
    """Returns the paths of the files that clang-format would change."""
    result = subprocess.run([CLANG_FORMAT, "--dry-run", *map(str, paths)], stderr=subprocess.PIPE, text=True, check=True)
    return sorted({line.split(":", 1)[0] for line in result.stderr.splitlines() if "[-Wclang-format-violations]" in line})


@unittest.skipUnless(CLANG_FORMAT, "clang-format is not installed (Debian: clang-format)")
class FormatTest(unittest.TestCase):
    def test_all_sources_are_formatted(self):
        paths = sources()
        self.assertGreater(len(paths), 1000)
        parts = [paths[i : i + AT_A_TIME] for i in range(0, len(paths), AT_A_TIME)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [os.path.relpath(path, ROOT) for part in pool.map(unformatted, parts) for path in part]
        self.assertEqual(wrong, [], "scripts/format formats them")

    def test_a_source_that_is_not_formatted_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(ROOT / ".clang-format", folder)
            wrong, right = pathlib.Path(folder, "wrong.cc"), pathlib.Path(folder, "right.cc")
            wrong.write_text("int  f( ){return 1 ;}\n", encoding="utf-8")
            right.write_text("int f() { return 1; }\n", encoding="utf-8")
            self.assertEqual(unformatted([right, wrong]), [str(wrong)])


if __name__ == "__main__":
    unittest.main()
