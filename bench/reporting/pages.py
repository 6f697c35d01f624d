# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and plots of stored results into the documents.

A page holds pairs of lines `<!-- report: NAME -->` and `<!-- end of report -->`; what lies between them is replaced by
block NAME. Every block says where its figures come from and which peers were not measured.
"""
import re
import textwrap

from reporting import plot

number = plot.number
NOT_MEASURED = "Not measured."


def replace_blocks(page, blocks):
    """`page` with the content of every marked block replaced. KeyError: a block that does not exist."""
    def block(found):
        return f"{found.group(1)}\n\n{blocks[found.group(2)].strip()}\n\n{found.group(3)}"
    return re.sub(r"(<!-- report: ([a-z_0-9]+) -->)\n.*?(<!-- end of report -->)", block, page, flags=re.DOTALL)


def table(header, rows):
    """A Markdown table; a cell that is None is a dash."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def spread_text(case, scale=1.0, bold=False):
    """The median and, if there are several launches, the smallest and the largest."""
    if case is None:
        return None
    if case.get("median") is None:
        return f"{number(case['min'] * scale)} to {number(case['max'] * scale)}"
    text = number(case["median"] * scale)
    text = f"**{text}**" if bold else text
    if case.get("min") is None or case["min"] == case["max"]:
        return text
    return f"{text} ({number(case['min'] * scale)} to {number(case['max'] * scale)})"


def grouped(value):
    return f"{value:,.0f}"


def provenance(suite):
    """One paragraph: when, where, which build, which commands, and what was not measured."""
    source, machine = suite["source"], suite["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    text = f"*{source['date']}, commit {source['commit']}; {where}"
    if source.get("launches"):
        text += f"; {source['launches']} alternated launches" if source["launches"] > 1 else "; one launch"
    for peer, version in sorted(suite.get("versions", {}).items()):
        text += f"; {peer} {version}"
    text += ".*"
    if source["kind"] == "documentation":
        text += f" *Taken over from the page `{source['page']}` of that commit.*"
    if source.get("note"):
        text += f" {source['note']}"
    text = textwrap.fill(text, 98, break_long_words=False, break_on_hyphens=False)
    text += "\n\n" + "\n".join(command_lines(command) for command in source["commands"])
    if suite["missing"]:
        text += "\n\n" + "\n".join(
            textwrap.fill(f"- Not measured: {peer}: {reason}.", 98, subsequent_indent="  ", break_on_hyphens=False)
            for peer, reason in sorted(suite["missing"].items()))
    return text


def command_lines(command):
    """An indented command, continued on further lines where it is long."""
    lines = textwrap.wrap(command, 90, break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(("    " if i == 0 else "        ") + line for i, line in enumerate(lines))


def find(suite, **keys):
    """The case with these keys, or None."""
    return next((c for c in suite["cases"] if all(c.get(k) == v for k, v in keys.items())), None)


def values_of(suite, key, **keys):
    """The distinct values of `key`, in the order of the cases, of the cases with `keys`."""
    return list(dict.fromkeys(c[key] for c in suite["cases"]
                              if key in c and all(c.get(k) == v for k, v in keys.items())))


def ordered(systems):
    """Ours first, the rest as they come."""
    return sorted(systems, key=lambda s: not s.startswith("tandem"))


# Blocks: NAME -> (suite, function). A function returns Markdown; plots are listed in PLOTS.

def training(suite):
    optimizers = values_of(suite, "optimizer")
    rows = []
    for system in values_of(suite, "system"):
        cases = [find(suite, system=system, optimizer=o) for o in optimizers]
        rows.append([system] + [None if c is None else f"{grouped(c['min'])} / **{grouped(c['median'])}** / {grouped(c['max'])}"
                                for c in cases])
    result = table(["samples/s: min / median / max"] + [o.capitalize() if o != "sgd" else "SGD" for o in optimizers], rows)
    ratios = []
    for system in values_of(suite, "system"):
        peers = dict.fromkeys(peer for o in optimizers for peer in (find(suite, system=system, optimizer=o) or {}).get("ratios", {}))
        for peer in peers:
            cells = []
            for o in optimizers:
                found = (find(suite, system=system, optimizer=o) or {}).get("ratios", {}).get(peer)
                cells.append(found and spread_text(found))
            ratios.append([f"{system} / {peer}"] + cells)
    return result + ("\n\n" + table(["ratio of rates, launch by launch"] + optimizers, ratios) if ratios else "")


STAGES = (("wait_rows", "wait for rows"), ("gather", "gather rows into the input"), ("forward", "forward, loss"),
          ("backward", "backward"), ("hand_over", "hand-over to the other threads"), ("wait_reduce", "wait for the all-reduce"),
          ("optimizer", "dense optimizer"), ("step", "**the step**"))
STAGES_BESIDE = (("beside_read", "read a batch"), ("beside_dedupe", "deduplicate ids"), ("beside_permit", "wait for a permit"),
                 ("beside_pull_send", "send the pull"), ("beside_scatter", "add input gradients up by row"),
                 ("beside_push_send", "encode and send the push"))


def step(suite):
    def part(title, stages):
        return table([title, "ms"], [[text, spread_text(find(suite, stage=stage))] for stage, text in stages
                                     if find(suite, stage=stage)])
    return part("on the computing thread", STAGES) + "\n\n" + part("on other threads at the same time", STAGES_BESIDE)


def collectives(suite, comparison):
    if not find(suite, comparison=comparison):
        return NOT_MEASURED
    systems = ordered(values_of(suite, "system", comparison=comparison))
    both = [c for c in (False, True) if find(suite, comparison=comparison, in_place=c)]
    rows = []
    for size in sorted(values_of(suite, "bytes", comparison=comparison)):
        def cell(system, of):
            cases = [find(suite, comparison=comparison, bytes=size, in_place=p, system=system) for p in both]
            return " / ".join("–" if c is None or of(c) is None else of(c) for c in cases)
        rows.append([plot.size(size)] + [cell(s, lambda c: c.get("median") and number(c["median"])) for s in systems] +
                    [cell(systems[0], lambda c: c.get("ratios") and spread_text(c["ratios"]["best"]))])
    places = "out of place / in place" if len(both) == 2 else "in place" if both == [True] else "out of place"
    return table([f"bytes ({places})"] + [f"{s}, us" for s in systems] + ["ratio to the best peer (min to max)"], rows)


def collectives_tcp(suite):
    rows = []
    for size in sorted(values_of(suite, "bytes", comparison="tcp")):
        cells = [find(suite, comparison="tcp", bytes=size, in_place=p, system="tandem tcp") for p in (False, True)]
        rows.append([plot.size(size)] + [c and spread_text(c["ratios"]["best"]) for c in cells])
    return table(["bytes", "ratio to Gloo, out of place", "in place"], rows) if rows else NOT_MEASURED


PS_CASES = (("pull", 4096), ("pull", 16384), ("push", 4096), ("push", 16384))


def ps(suite):
    cases = [c for c in PS_CASES if find(suite, op=c[0], ids=c[1])]
    header = ["million rows/s"] + [f"{op}, {ids} ids" for op, ids in cases]
    rows, ratios = [], []
    for system in ordered(values_of(suite, "system", unit="rows/s")):
        found = [find(suite, system=system, op=op, ids=ids, unit="rows/s") for op, ids in cases]
        rows.append([system] + [spread_text(c, 1e-6, system.startswith("tandem")) for c in found])
        for peer in dict.fromkeys(peer for c in found if c for peer in c.get("ratios", {})):
            ratios.append([f"{system} / {peer}"] + [c and peer in c["ratios"] and spread_text(c["ratios"][peer]) or None for c in found])
    text = table(header, rows)
    if ratios:
        text += "\n\n" + table(["ratio of rates, launch by launch"] + header[1:], ratios)
    plain = [find(suite, system="tandem in process", op=op, ids=ids, unit="of a plain gather") for op, ids in cases]
    if any(plain):
        text += "\n\n" + table(["in process, part of a plain gather's rate"] + header[1:], [["tandem in process"] +
                                                                                      [spread_text(c) for c in plain]])
    return text


def latency(suite):
    rows = []
    for transport in values_of(suite, "transport"):
        rows.append([transport] + [spread_text(find(suite, transport=transport, what=what)) for what in ("median_us", "p99_us")])
    return table(["one id a call, one call at a time", "median, us", "p99, us"], rows)


def fairness(suite):
    rows = []
    for transport in values_of(suite, "transport"):
        for ids in values_of(suite, "ids", transport=transport) or [None]:
            for distribution in values_of(suite, "distribution", transport=transport, ids=ids):
                keys = {"transport": transport, "ids": ids, "distribution": distribution}
                rows.append([transport, ids, distribution] + [spread_text(find(suite, what=what, **keys))
                                                              for what in ("idle_p99_us", "loaded_p99_us", "p99_ratio")])
    return table(["transport", "ids", "distribution", "p99 alone, us", "p99 next to pushes, us", "ratio"], rows)


def rows(suite):
    shown = (("table_bytes", "memory of the table, GB", 1e-9), ("resident_bytes", "resident memory of the process, GB", 1e-9),
             ("bytes_per_row", "bytes a row", 1), ("load_rows_per_s", "rows made, million/s", 1e-6),
             ("lookup_rows_per_s", "rows read, million/s", 1e-6), ("update_rows_per_s", "rows updated, million/s", 1e-6),
             ("longest_pause_us", "longest lock of a part of the table, ms", 1e-3))
    first = suite["cases"][0]
    header = f"{first['rows']:,} rows of dim {first['dim']}, {first['row_type']}, {first['optimizer']}"
    return table([header, "value"], [[text, spread_text(find(suite, what=what), scale)] for what, text, scale in shown
                                     if find(suite, what=what)])


def rpc(suite):
    rows = []
    for system in ordered(values_of(suite, "system")):
        rate = find(suite, system=system, kind="empty", what="calls_per_s")
        rows.append([system, spread_text(find(suite, system=system, kind="empty", what="p50_us")),
                     rate and spread_text(rate, 1e-3) + (f" at {rate['in_flight']} in flight" if rate.get("in_flight") else ""),
                     spread_text(find(suite, system=system, kind="echo", what="gb_per_s"))])
    text = table(["", "empty call, median us, one at a time", "empty calls, thousand/s", "echo of 1 MiB, GB/s each way"], rows)
    ratios = []
    for system in ordered(values_of(suite, "system")):
        found = (find(suite, system=system, kind="echo", what="gb_per_s") or {}).get("ratios", {})
        ratios += [[system, peer, spread_text(spread)] for peer, spread in found.items()]
    return text + ("\n\n" + table(["echo of 1 MiB", "peer", "times the peer's rate"], ratios) if ratios else "")


PYTHON_VALUES = {
    "pull_1_us": "pull of 1 id, us", "pull_4096_us": "pull of 4096 ids x 64 floats, us",
    "thread_rate": "rate of another thread meanwhile", "tandem_us": "Tandem, us", "gloo_us": "Gloo, us",
    "gloo_over_tandem": "Gloo / Tandem", "empty_us": "empty call, us", "echo_us": "echo of 1 MiB, us",
    "samples_per_s": "samples/s", "dense_part": "dense part of a step",
}


def python(suite, name):
    rows = []
    for case in (c for c in suite["cases"] if c["suite"] == name):
        ratios = "; ".join(f"{spread_text(found)} x {peer}" for peer, found in sorted(case["ratios"].items()))
        rows.append([case["system"], PYTHON_VALUES.get(case["value"], case["value"]), spread_text(case), ratios or None])
    return table(["", "", "median (smallest to largest)", "times the peer's speed"], rows) if rows else NOT_MEASURED


def replay(suite):
    cases = list(dict.fromkeys((c["op"], c["bytes"]) for c in suite["cases"]))
    systems = values_of(suite, "system")
    header = ["thousand items/s"] + [f"{op}, {size:,} B" for op, size in cases]
    text = table(header, [[s] + [spread_text(find(suite, system=s, op=op, bytes=size), 1e-3) for op, size in cases]
                          for s in systems])
    ratios = []
    for system in systems:
        found = [find(suite, system=system, op=op, bytes=size) for op, size in cases]
        for peer in dict.fromkeys(peer for c in found if c for peer in c.get("ratios", {})):
            ratios.append([f"{system} / {peer}"] + [spread_text(c["ratios"][peer]) if c and peer in c["ratios"] else None
                                                    for c in found])
    return text + ("\n\n" + table(["ratio of rates, launch by launch"] + header[1:], ratios) if ratios else "")


QUALITY_DATA = {
    "small": "ten features with vocabularies from 2 to 5,000, planted",
    "zipf": "the same and a Zipf 1.05 feature with a million ids on the servers, planted",
    "uniform": "the same and a uniform feature with a million ids on the servers, planted",
    "insteval": "InstEval, 73,421 real ratings, 14 steps an epoch",
    "factors": "clicks from a product of hidden factors of user and item",
}


def quality(suite):
    parts = []
    for data in values_of(suite, "data"):
        rows = []
        for case in (c for c in suite["cases"] if c["data"] == data):
            auc, lost = case["auc"], case["auc_lost"]
            rows.append([case["mode"], f"{auc['median']:.4f} ({auc['min']:.4f} to {auc['max']:.4f})",
                         None if case["mode"] == "sync" else f"{lost['median']:.4f} ({lost['max']:.4f})",
                         spread_text(case["samples_per_s"], 1e-3),
                         None if case["mode"] == "sync" else spread_text(case["speed_ratio"]),
                         number(case["row_staleness"]), grouped(case["replicated_rows"]), case["warned_features"]])
        parts.append(f"`{data}`: {QUALITY_DATA.get(data, 'a job file')}\n\n" + table(
            ["mode, placement", "test AUC", "from sync's, same seed: median (largest)", "1000 samples/s", "times sync's",
             "highest row staleness", "replicated rows", "warnings"], rows))
    return "\n\n".join(parts)


BLOCKS = {
    "training": ("training", training), "step": ("step", step),
    "collectives_2": ("collectives", lambda s: collectives(s, "2 ranks")),
    "collectives_4": ("collectives", lambda s: collectives(s, "4 ranks")),
    "collectives_tcp": ("collectives", collectives_tcp),
    "collectives_busy": ("collectives", lambda s: collectives(s, "busy machine")),
    "ps": ("ps", ps), "latency": ("latency", latency), "fairness": ("fairness", fairness), "rows": ("rows", rows),
    "rpc": ("rpc", rpc), "replay": ("replay", replay), "quality": ("quality", quality),
    "python_dlrm": ("python", lambda s: python(s, "dlrm")),
    "python_pull": ("python", lambda s: python(s, "pull")),
    "python_all_reduce": ("python", lambda s: python(s, "all_reduce")),
    "python_rpc": ("python", lambda s: python(s, "rpc")),
}
# Blocks that do not state machine and date: collectives_2 and python_dlrm, which come first on the page, do.
WITHOUT_SOURCE = ("collectives_4", "collectives_tcp", "collectives_busy", "python_pull", "python_all_reduce", "python_rpc")


def markdown_blocks(results):
    """{NAME: Markdown} for every block; one whose suite has no results says so."""
    blocks = {}
    for name, (suite_name, function) in BLOCKS.items():
        suite = results["suites"].get(suite_name)
        if suite is None:
            blocks[name] = f"Not measured yet: `bench/report --only {suite_name}`."
        else:
            blocks[name] = function(suite) + ("" if name in WITHOUT_SOURCE else "\n\n" + provenance(suite))
    return blocks


# Plots: FILE -> (suite, function that returns SVG or None).

def _rows(suite, systems, colours, scale=1.0, **keys):
    found = [(s, find(suite, system=s, **keys)) for s in systems]
    return [(s, c["median"] * scale, None if c.get("min") is None else c["min"] * scale,
             None if c.get("max") is None else c["max"] * scale, colours(s)) for s, c in found if c]


def _ours_or_theirs(system):
    return 0 if system.startswith("tandem") else 1


def plot_training(suite):
    systems = values_of(suite, "system")
    return plot.panels("Training a DLRM, thousand samples a second (more is better)", [
        {"title": optimizer, "unit": "1000/s", "rows": _rows(suite, systems, _ours_or_theirs, 1e-3, optimizer=optimizer)}
        for optimizer in values_of(suite, "optimizer")], columns=1)


def plot_collectives(suite, comparison):
    systems = ordered(values_of(suite, "system", comparison=comparison))
    series = [(s, [(c["bytes"], c["median"]) for c in suite["cases"] if c["system"] == s and c.get("median") is not None and
                   c["comparison"] == comparison and not c["in_place"]]) for s in systems]
    if not any(points for _, points in series):
        return None
    return plot.lines(f"All-reduce among {comparison}, out of place, float32 sum (less is better)", "bytes", "microseconds",
                      series)


def plot_ps(suite):
    systems = [s for s in ordered(values_of(suite, "system", unit="rows/s"))]
    return plot.panels("Parameter server, rows of 64 floats, million rows a second (more is better)", [
        {"title": f"{op}, {ids} ids a call", "unit": "10^6/s",
         "rows": _rows(suite, systems, _ours_or_theirs, 1e-6, op=op, ids=ids, unit="rows/s")} for op, ids in PS_CASES])


def plot_rpc(suite):
    systems = ordered(values_of(suite, "system"))
    return plot.panels("Remote functions between two processes", [
        {"title": "empty call (less is better)", "unit": "us, log", "log": True,
         "rows": _rows(suite, systems, _ours_or_theirs, kind="empty", what="p50_us")},
        {"title": "echo of 1 MiB (more is better)", "unit": "GB/s",
         "rows": _rows(suite, systems, _ours_or_theirs, kind="echo", what="gb_per_s")}])


def plot_quality(suite):
    charts = []
    for data in values_of(suite, "data"):
        cases = [c for c in suite["cases"] if c["data"] == data]
        lost = [(c["mode"], c["auc_lost"]) for c in cases if c["mode"] != "sync"]
        rate = [(c["mode"], c["samples_per_s"]) for c in cases]
        charts.append({"title": f"{data}: AUC from sync's", "unit": "thousandths",
                       "rows": [(m, s["median"] * 1e3, s["min"] * 1e3, s["max"] * 1e3, 1 if "sharded" in m else 0)
                                for m, s in lost]})
        charts.append({"title": f"{data}: speed", "unit": "1000 samples/s",
                       "rows": [(m, s["median"] * 1e-3, s["min"] * 1e-3, s["max"] * 1e-3, 1 if "sharded" in m else 0)
                                for m, s in rate]})
    return plot.panels("Asynchronous training: quality (less is better) and speed (more is better)", charts)


PLOTS = {
    "quality.svg": ("quality", plot_quality),
    "training.svg": ("training", plot_training),
    "collectives_2.svg": ("collectives", lambda s: plot_collectives(s, "2 ranks")),
    "collectives_4.svg": ("collectives", lambda s: plot_collectives(s, "4 ranks")),
    "ps.svg": ("ps", plot_ps), "rpc.svg": ("rpc", plot_rpc),
}


def svg_plots(results):
    """{file name: SVG} of the suites that have results."""
    drawn = {name: function(results["suites"][suite]) for name, (suite, function) in PLOTS.items()
             if suite in results["suites"]}
    return {name: svg for name, svg in drawn.items() if svg}
