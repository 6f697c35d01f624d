# SPDX-License-Identifier: Apache-2.0
"""Tables of a Python program and of a job file have the same defaults."""

import inspect
import re
import subprocess

import pytest
from processes import DEADLINE_S, tandem_binary

import tandem

# Groups of a job's table, and the modules whose functions make their kinds.
GROUPS = {"optimizer": tandem.optim, "initializer": tandem.init, "admission": tandem.admission, "eviction": tandem.eviction}


def printed_job(directory, embedding: str) -> str:
    """Returns a job with every default, as `tandem train --print-job` prints it."""
    job = directory / "job.yaml"
    job.write_text(f"data: {{train: x.csv, label: y, sparse: [a]}}\nmodel: fm\nembedding: {embedding}\n")
    command = [tandem_binary(), "train", str(job), "--print-job"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout


def job_fields(directory, embedding: str) -> dict:
    """Returns the group `embedding` of that job."""
    groups: dict = {}
    section = group = ""
    for line in printed_job(directory, embedding).splitlines():
        name, _, value = line.strip().partition(":")
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            section = name
        elif section == "embedding" and indent == 2:
            group = name
            groups[group] = value.strip() or {}
        elif section == "embedding" and indent == 4:
            groups[group][name] = value.strip()
    return groups


def same(printed: str, value) -> bool:
    try:
        return float(printed) == pytest.approx(float(value), rel=1e-6)
    except (TypeError, ValueError):
        return printed == str(value).lower()


def default_of(make) -> dict:
    """Returns the defaults of a function; required parameters get the value 1."""
    parameters = inspect.signature(make).parameters.values()
    return {p.name: 1 if p.default is inspect.Parameter.empty else p.default for p in parameters}


@pytest.mark.parametrize("group", ["optimizer", "initializer"])
def test_fields_of_kinds_have_the_same_defaults(tmp_path, group):
    module = GROUPS[group]
    for name in module.__all__:
        make = getattr(module, name)
        fields = default_of(make)
        required = {p.name: 1 for p in inspect.signature(make).parameters.values() if p.default is inspect.Parameter.empty}
        kind = make(**required)
        given = "".join(f", {n}: {v}" for n, v in required.items())
        printed = job_fields(tmp_path, f"{{{group}: {{kind: {kind.name}{given}}}}}")
        for field, value in fields.items():
            # Some fields of an optimizer, such as l2, are those of the table in a job file.
            assert same(printed[group].get(field, printed.get(field)), value), (name, field)


def test_a_table_has_the_initializer_of_a_job(tmp_path):
    printed = job_fields(tmp_path, "{}")
    with tandem.local() as client:
        client.create_table("user", dim=4, optimizer=tandem.optim.SGD(lr=0.1))
        table = client.tables()["user"].config
        assert table["initializer"]["kind"] == printed["initializer"]["kind"]
        for field, value in table["initializer"].items():
            if field != "kind" and printed["initializer"].get(field) is not None:
                assert same(printed["initializer"][field], value), field
        assert table["row_type"].lower() == printed["row_type"]


def test_the_update_mode_is_the_one_default_that_differs(tmp_path):
    # A program's worker need not push in every step, and tables in sync mode would wait for it (docs/python.md).
    assert re.search(r"^train:\n  mode: sync$", printed_job(tmp_path, "{}"), re.MULTILINE)
    with tandem.local() as client:
        client.create_table("user", dim=4, optimizer=tandem.optim.SGD(lr=0.1))
        assert client.tables()["user"].config["update_mode"]["kind"] == "ASYNC"
