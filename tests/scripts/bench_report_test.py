# SPDX-License-Identifier: Apache-2.0
"""Tests of the tables and plots of bench/report, and of how it stores results."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = ("performance/README.md", "performance/ps.md", "performance/rl.md", "performance/quality.md")
sys.path.insert(0, os.path.join(ROOT, "bench"))

from reporting import pages, plot, suites, summary  # noqa: E402


def load_report():
    loader = importlib.machinery.SourceFileLoader("report", os.path.join(ROOT, "bench", "report"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("report", loader))
    loader.exec_module(module)
    return module


def rpc_suite(**changes):
    cases = [dict(system=system, kind="empty", bytes=0, what="p50_us", unit="us", median=us, min=us / 2, max=us * 2)
             for system, us in (("grpc tcp", 157.0), ("tandem shm", 2.8))]
    cases += [dict(system="tandem shm", kind="empty", bytes=0, what="calls_per_s", unit="calls/s", in_flight=512, median=370e3,
                   min=370e3, max=370e3),
              dict(system="tandem shm", kind="echo", bytes=1 << 20, what="gb_per_s", unit="GB/s", median=3.7, min=3.0, max=4.0,
                   ratios={"grpc tcp": {"median": 11.0, "min": 9.0, "max": 12.0}})]
    suite = {"source": {"kind": "measured", "date": "2026-11-22", "commit": "abc1234", "launches": 5,
                        "commands": ["bench/compare_rpc --launches 5"]},
             "machine": {"cpu": "A processor", "cores": 2, "system": "Debian"},
             "missing": {"torch": "python3-torch is not installed"}, "cases": cases}
    suite.update(changes)
    return suite


class SummaryTest(unittest.TestCase):
    def test_the_ratio_is_taken_launch_by_launch(self):
        self.assertEqual(summary.ratio([2, 9, 8], [1, 3, 8]), {"median": 2, "min": 1, "max": 3})

    def test_a_comparison_is_written_with_its_absent_peers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cases.json")
            summary.write_comparison(path, [{"system": "tandem"}], {"redis": "not installed"}, {"torch": "2.15.0"})
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file), {"cases": [{"system": "tandem"}], "missing": {"redis": "not installed"},
                                                   "versions": {"torch": "2.15.0"}})

    def test_the_machine_has_a_processor_and_cores(self):
        found = summary.machine()
        self.assertTrue(found["cpu"])
        self.assertGreaterEqual(found["cores"], 1)


class NumberTest(unittest.TestCase):
    def test_numbers_have_three_digits_and_no_trailing_zeros(self):
        for value, text in ((0, "0"), (2.8, "2.8"), (33.0, "33"), (0.1234, "0.123"), (12345.6, "12346"), (0.00001, "<0.001"),
                            (None, "–"), (99.96, "100")):
            self.assertEqual(plot.number(value), text)

    def test_sizes_are_spelled_like_flags(self):
        self.assertEqual([plot.size(n) for n in (8, 1000, 1024, 16384, 1 << 26)], ["8", "1000", "1K", "16K", "64M"])

    def test_ticks_enclose_the_values(self):
        self.assertEqual(plot.decades(0.18, 62631), [0.1, 1, 10, 100, 1000, 10000, 100000])
        for high in (0.7, 3.7, 25.9, 270, 99999):
            ticks = plot.nice_ticks(high)
            self.assertEqual(ticks[0], 0)
            self.assertGreaterEqual(ticks[-1], high * (1 - 1e-9))
            self.assertLessEqual(len(ticks), 8)


class PlotTest(unittest.TestCase):
    def parse(self, svg):
        return xml.etree.ElementTree.fromstring(svg)

    def texts(self, svg):
        return [element.text for element in self.parse(svg).iter("{http://www.w3.org/2000/svg}text")]

    def test_lines_are_well_formed_and_name_every_series(self):
        svg = plot.lines("A < B & \"C\"", "bytes", "us", [("tandem", [(8, 0.2), (1024, 3)]), ("mpi", [(8, 1)]), ("none", [])])
        texts = self.texts(svg)
        for text in ("A < B & \"C\"", "tandem", "mpi", "bytes", "us", "8", "1K"):
            self.assertIn(text, texts)
        self.assertNotIn("none", texts)

    def test_points_stay_on_the_page(self):
        svg = plot.lines("t", "x", "y", [("a", [(8, 0.18), (1 << 26, 62631)])])
        for circle in self.parse(svg).iter("{http://www.w3.org/2000/svg}circle"):
            self.assertTrue(0 <= float(circle.get("cx")) <= plot.WIDTH)
            self.assertTrue(0 <= float(circle.get("cy")) <= 420)

    def test_a_longer_bar_is_a_larger_value(self):
        svg = plot.panels("t", [{"title": "p", "unit": "u", "rows": [("a", 1.0, None, None, 0), ("b", 2.0, 1.5, 2.5, 1)]}])
        bars = [float(r.get("width")) for r in self.parse(svg).iter("{http://www.w3.org/2000/svg}rect") if r.get("class") != "page"]
        self.assertAlmostEqual(bars[1], 2 * bars[0], delta=0.1)

    def test_charts_without_values_are_left_out(self):
        svg = plot.panels("t", [{"title": "empty", "unit": "", "rows": []}, {"title": "full", "unit": "", "log": True,
                                                                              "rows": [("a", 5.0, 4.0, 50.0, 0)]}])
        self.assertNotIn("empty", self.texts(svg))
        self.assertIn("full", self.texts(svg))

    def test_both_colour_schemes_are_there(self):
        self.assertIn("prefers-color-scheme:dark", plot.panels("t", [{"title": "p", "unit": "u", "rows": [("a", 1.0, None, None, 0)]}]))


class PagesTest(unittest.TestCase):
    def test_a_marked_block_is_replaced_and_the_rest_is_kept(self):
        page = "# Title\n\n<!-- report: rpc -->\nold\n<!-- end of report -->\n\nText.\n"
        once = pages.replace_blocks(page, {"rpc": "| new |\n"})
        self.assertEqual(once, "# Title\n\n<!-- report: rpc -->\n\n| new |\n\n<!-- end of report -->\n\nText.\n")
        self.assertEqual(pages.replace_blocks(once, {"rpc": "| new |"}), once)

    def test_an_unknown_block_is_an_error(self):
        with self.assertRaises(KeyError):
            pages.replace_blocks("<!-- report: nonsense -->\n<!-- end of report -->\n", {})

    def test_a_table_shows_ours_first_and_a_dash_for_what_is_missing(self):
        text = pages.markdown_blocks({"suites": {"rpc": rpc_suite()}})["rpc"]
        lines = text.splitlines()
        self.assertIn("| tandem shm | 2.8 (1.4 to 5.6) | 370 at 512 in flight | 3.7 (3 to 4) |", lines)
        self.assertIn("| grpc tcp | 157 (78.5 to 314) | – | – |", lines)
        self.assertLess(text.index("tandem shm"), text.index("grpc tcp"))
        self.assertIn("| tandem shm | grpc tcp | 11 (9 to 12) |", lines)

    def test_absent_peers_and_the_origin_are_written(self):
        text = pages.markdown_blocks({"suites": {"rpc": rpc_suite()}})["rpc"]
        self.assertIn("- Not measured: torch: python3-torch is not installed.", text)
        self.assertIn("*2026-11-22, commit abc1234; A processor, 2 cores, Debian; 5 alternated launches.*", text.replace("\n", " "))
        self.assertIn("    bench/compare_rpc --launches 5", text)

    def test_the_versions_of_peers_are_written(self):
        text = pages.markdown_blocks({"suites": {"rpc": rpc_suite(versions={"torch": "2.15.0"})}})["rpc"]
        self.assertIn("5 alternated launches; torch 2.15.0.*", text.replace("\n", " "))

    def test_figures_that_were_taken_over_say_so(self):
        source = dict(rpc_suite()["source"], kind="documentation", page="docs/rpc.md")
        text = pages.markdown_blocks({"suites": {"rpc": rpc_suite(source=source)}})["rpc"]
        self.assertIn("Taken over from the page `docs/rpc.md` of that commit.", text.replace("\n", " "))

    def test_a_suite_without_results_says_how_to_measure_it(self):
        self.assertEqual(pages.markdown_blocks({"suites": {}})["ps"], "Not measured yet: `bench/report --only ps`.")

    def test_a_comparison_without_cases_is_said_to_be_unmeasured(self):
        suite = rpc_suite(cases=[dict(system="tandem shm", comparison="2 ranks", bytes=8, in_place=False, unit="us", median=0.2)])
        blocks = pages.markdown_blocks({"suites": {"collectives": suite}})
        self.assertIn("| 8 | 0.2 | – |", blocks["collectives_2"])
        self.assertEqual(blocks["collectives_4"], "Not measured.")
        self.assertNotIn("collectives_4.svg", pages.svg_plots({"suites": {"collectives": suite}}))


class StoredResultsTest(unittest.TestCase):
    """docs/performance/results.json and the pages that are drawn from it."""

    def setUp(self):
        with open(os.path.join(ROOT, "docs", "performance", "results.json"), encoding="utf-8") as file:
            self.results = json.load(file)

    def test_every_suite_is_known_and_says_where_its_figures_come_from(self):
        for name, suite in self.results["suites"].items():
            self.assertIn(name, suites.SUITES)
            for key in ("kind", "date", "commit", "commands"):
                self.assertTrue(suite["source"][key], f"{name}: {key}")
            self.assertTrue(suite["machine"]["cpu"])
            self.assertTrue(suite["cases"])

    def test_pages_and_plots_are_those_of_the_stored_results(self):
        blocks, plots = pages.markdown_blocks(self.results), pages.svg_plots(self.results)
        for name in PAGES:
            with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as file:
                page = file.read()
            self.assertEqual(pages.replace_blocks(page, blocks), page, f"docs/{name}: run bench/report --draw")
        for name, svg in plots.items():
            with open(os.path.join(ROOT, "docs", "performance", name), encoding="utf-8") as file:
                self.assertEqual(file.read(), svg, f"docs/performance/{name}: run bench/report --draw")

    def test_every_block_is_on_a_page(self):
        text = ""
        for name in PAGES:
            with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as file:
                text += file.read()
        for block in pages.BLOCKS:
            self.assertIn(f"<!-- report: {block} -->", text)
        for name in pages.PLOTS:
            self.assertRegex(text, rf"\]\((performance/)?{name}\)")


class ReportTest(unittest.TestCase):
    def test_it_draws_into_another_folder_without_measuring(self):
        report = load_report()
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "performance"))
            with open(os.path.join(folder, "performance", "results.json"), "w", encoding="utf-8") as file:
                json.dump({"format": 1, "suites": {"rpc": rpc_suite()}}, file)
            with open(os.path.join(folder, "page.md"), "w", encoding="utf-8") as file:
                file.write("<!-- report: rpc -->\n<!-- end of report -->\n")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                sys.argv = ["report", "--draw", "--out", folder]
                report.main()
            self.assertTrue(os.path.exists(os.path.join(folder, "performance", "rpc.svg")))
            with open(os.path.join(folder, "page.md"), encoding="utf-8") as file:
                self.assertIn("| tandem shm |", file.read())

    def test_an_unknown_suite_is_refused_by_name(self):
        report = load_report()
        errors = io.StringIO()
        sys.argv = ["report", "--only", "nonsense"]
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as ended:
            report.main()
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("there is no 'nonsense'", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
