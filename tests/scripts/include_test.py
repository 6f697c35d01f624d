# SPDX-License-Identifier: Apache-2.0
"""Checks the #include lines of the source tree: modules depend only on lower modules, folders have no cycles, only rpc/grpc
includes gRPC, and the headers that are installed include nothing that is not installed."""

import collections
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A module may include modules of lower layers and itself, but no other module of its own layer.
LAYERS = [
    ["base"],
    ["proto"],
    ["rpc"],
    ["cluster"],
    ["ps", "collectives", "replay", "weights"],
    ["worker"],
    ["launcher"],
    ["bench"],
    ["cli", "python"],
]
LAYER_OF = {module: layer for layer, modules in enumerate(LAYERS) for module in modules}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
GRPC_HEADER = re.compile(r"^(grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h$")
GRPC_FOLDERS = ("rpc/grpc/", "bench/peers/", "tests/")


def read_includes():
    """Returns {path: [included path, ...]} of the modules and the tests, with paths relative to the root of the tree."""
    includes = {}
    for folder in [*LAYER_OF, "examples", "tests"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                text = path.read_text(encoding="utf-8")
                includes[path.relative_to(ROOT).as_posix()] = [match.group(2) for match in INCLUDE.finditer(text)]
    return includes


def module_of(path):
    """Returns the module of a path as it is written in an #include, or None if it is not part of this tree."""
    if path.endswith(".pb.h"):
        return "proto" if path.startswith(("tandem/", "etcd/")) else None
    first = path.split("/")[0]
    return first if "/" in path and (first in LAYER_OF or first in ("tests", "examples")) else None


def upward_includes(includes):
    """Returns the includes of a higher module, or of another module of the same layer, as readable lines."""
    wrong = []
    for path, included in includes.items():
        module = module_of(path)
        if module not in LAYER_OF:
            continue  # Tests and examples may include everything.
        for header in included:
            target = module_of(header)
            if target is None or target == module:
                continue
            if target not in LAYER_OF or LAYER_OF[target] >= LAYER_OF[module]:
                wrong.append(f"{path} ({module}) includes {header} ({target})")
    return wrong


def folder_cycles(includes):
    """Returns the groups of folders that include each other, each as a readable text with one include per edge."""
    edges = collections.defaultdict(dict)
    for path, included in includes.items():
        if path.startswith(("tests/", "examples/")):
            continue
        folder = path.rpartition("/")[0]
        for header in included:
            target = header.rpartition("/")[0]
            if header in includes and target != folder:
                edges[folder].setdefault(target, f"{path} includes {header}")
    return [describe_cycle(group, edges) for group in strongly_connected(edges) if len(group) > 1]


def describe_cycle(group, edges):
    lines = [edges[a][b] for a in sorted(group) for b in sorted(edges[a]) if b in group]
    return "\n    ".join([", ".join(sorted(group)) + ":"] + lines)


def strongly_connected(edges):
    """Returns the strongly connected components of a graph (Kosaraju's algorithm)."""
    order, seen = [], set()

    def finish(node):
        seen.add(node)
        for target in edges.get(node, ()):
            if target not in seen:
                finish(target)
        order.append(node)

    for node in list(edges):
        if node not in seen:
            finish(node)
    reverse = collections.defaultdict(set)
    for node, targets in edges.items():
        for target in targets:
            reverse[target].add(node)
    components, assigned = [], set()
    for node in reversed(order):
        component, todo = set(), [node]
        while todo:
            current = todo.pop()
            if current not in assigned:
                assigned.add(current)
                component.add(current)
                todo.extend(reverse[current])
        if component:
            components.append(component)
    return components


def grpc_includes(includes):
    """Returns the includes of gRPC's headers outside the folders that may have them."""
    return [f"{path} includes {header}" for path, included in includes.items() if not path.startswith(GRPC_FOLDERS)
            for header in included if GRPC_HEADER.search(header)]


def declared_headers(keyword):
    """Returns the headers that the CMakeLists.txt of the modules list after PUBLIC_HDRS or DETAIL_HDRS."""
    headers = set()
    for module in LAYER_OF:
        lists = ROOT / module / "CMakeLists.txt"
        if lists.exists():
            for match in re.finditer(keyword + r"((?:\s+[\w./-]+\.h)+)", lists.read_text(encoding="utf-8")):
                headers.update(f"{module}/{header}" for header in match.group(1).split())
    return headers


def reachable(headers, includes):
    """Returns the headers of this tree that `headers` include, directly or not, and `headers` themselves."""
    found, todo = set(headers), list(headers)
    while todo:
        for header in includes.get(todo.pop(), ()):
            if header in includes and header not in found:
                found.add(header)
                todo.append(header)
    return found


class IncludeTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.includes = read_includes()

    def assert_none(self, wrong, rule):
        if wrong:
            self.fail(f"{rule}:\n  " + "\n  ".join(wrong))

    def test_finds_the_sources(self):
        self.assertGreater(len(self.includes), 500)

    def test_modules_include_only_lower_modules(self):
        self.assert_none(upward_includes(self.includes), "a module may include only modules of lower layers")

    def test_folders_have_no_cycles(self):
        self.assert_none(folder_cycles(self.includes), "these folders include each other")

    def test_only_the_grpc_transport_includes_grpc(self):
        self.assert_none(grpc_includes(self.includes), f"only {', '.join(GRPC_FOLDERS)} may include gRPC's headers")

    def test_installed_headers_include_only_installed_headers(self):
        public, detail = declared_headers("PUBLIC_HDRS"), declared_headers("DETAIL_HDRS")
        needed = reachable(public, self.includes)
        self.assertTrue(public)
        self.assert_none(sorted((public | detail) - set(self.includes)), "CMakeLists.txt lists headers that do not exist")
        self.assert_none(sorted(public & detail), "these are listed both as PUBLIC_HDRS and as DETAIL_HDRS")
        self.assert_none(sorted(needed - public - detail), "public headers include these, so DETAIL_HDRS must list them")
        self.assert_none(sorted(detail - needed), "no public header includes these, so DETAIL_HDRS must not list them")


class RulesTest(unittest.TestCase):
    """The rules themselves, on small trees."""

    def test_upward_include(self):
        self.assertEqual(upward_includes({"rpc/a.h": ["ps/table.h"]}), ["rpc/a.h (rpc) includes ps/table.h (ps)"])
        self.assertEqual(upward_includes({"ps/a.h": ["rpc/channel.h", "ps/table.h", "tandem/v1/store.pb.h"]}), [])

    def test_modules_of_one_layer(self):
        self.assertEqual(len(upward_includes({"ps/a.h": ["collectives/work.h"], "collectives/b.cc": ["ps/a.h"]})), 2)

    def test_modules_do_not_include_tests(self):
        self.assertEqual(len(upward_includes({"cli/a.cc": ["tests/testing/temp_dir.h"]})), 1)
        self.assertEqual(upward_includes({"tests/cli/a_test.cc": ["cli/a.h"]}), [])

    def test_folder_cycle(self):
        tree = {"ps/a/x.h": ["ps/b/y.h"], "ps/b/y.h": [], "ps/b/z.h": ["ps/c/w.h"], "ps/c/w.h": ["ps/a/x.h"]}
        self.assertEqual(len(folder_cycles(tree)), 1)
        self.assertIn("ps/c/w.h includes ps/a/x.h", folder_cycles(tree)[0])
        tree["ps/c/w.h"] = []
        self.assertEqual(folder_cycles(tree), [])

    def test_grpc(self):
        self.assertEqual(grpc_includes({"ps/a.cc": ["grpcpp/server.h"]}), ["ps/a.cc includes grpcpp/server.h"])
        self.assertEqual(grpc_includes({"rpc/grpc/a.cc": ["grpcpp/server.h"], "tests/a.cc": ["tandem/v1/echo.grpc.pb.h"]}), [])


if __name__ == "__main__":
    unittest.main()
