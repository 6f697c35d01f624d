# SPDX-License-Identifier: Apache-2.0
"""What every comparison reports in the same way: spreads, ratios, the JSON file and the machine."""
import json
import os
import platform
import re
import statistics


def spread(values):
    """{median, min, max} of the launches' values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(ours, theirs):
    """The spread of ours / theirs, launch by launch: neighbouring launches met the same machine."""
    return spread([a / b for a, b in zip(ours, theirs)])


def write_comparison(path, cases, missing, versions=None):
    """Writes what a comparison program measured.

    A case is a dictionary: `system`, the keys that tell cases apart (`op`, `ids`, ...), `unit`, `median`, `min`, `max` and
    `ratios`, which maps a peer to the spread of ours / the peer's. `missing` maps each absent peer to the reason, `versions`
    peers to their versions as far as they are known.
    """
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"cases": cases, "missing": missing, "versions": versions or {}}, file, indent=1)
        file.write("\n")


def machine():
    """The processor, cores, memory and system of this machine."""
    def first(path, pattern, default):
        try:
            with open(path, encoding="utf-8") as file:
                found = re.search(pattern, file.read(), re.MULTILINE)
            return found.group(1).strip() if found else default
        except OSError:
            return default
    release = first("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)', platform.system())
    return {
        "cpu": first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(first("/proc/meminfo", r"^MemTotal:\s*(\d+)", "0")) / 2**20, 1),
        "system": f"{release}, Linux {platform.release()}",
    }
