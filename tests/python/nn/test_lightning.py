# SPDX-License-Identifier: Apache-2.0
"""Tables that follow the optimizer of a LightningModule."""

import pathlib

import pytest
from processes import run_workers

import tandem

pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
pytest.importorskip("lightning", reason="Lightning is not installed (pip install lightning)")
from bags import bag_of  # noqa: E402
from lightning_program import PROGRAMS, compare  # noqa: E402


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
def test_a_trainer_gives_what_it_gives_with_torch(program):
    with tandem.local(servers=2, timeout=20) as client:
        compare(bag_of(client, update_mode="sync"), program)


def test_trainers_of_two_workers_with_ddp_give_what_they_give_with_torch(tmp_path):
    output = run_workers(tmp_path, pathlib.Path(__file__).with_name("lightning_worker.py"), "gloo", "tandem")
    for program in PROGRAMS:
        for backend in ("gloo", "tandem"):
            assert output.count(f": {program} is equal with {backend}") == 2, output
