# SPDX-License-Identifier: Apache-2.0
"""Calls that take a path refuse the address of an object store."""

import os

import pytest

import tandem
from tandem import replay
from tandem.errors import InvalidArgumentError

URL = "s3://bucket/run"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.save_checkpoint(URL),
        lambda client: client.load_checkpoint(URL),
        lambda client: tandem.export_checkpoint(URL, "arrays"),
        lambda client: tandem.export_checkpoint("ckpt", URL),
        lambda client: tandem.follow(URL),
        lambda client: tandem.local(spill_directory=URL),
        lambda client: replay.local([replay.Table("t")], checkpoint_directory=URL),
        lambda client: replay.serve([replay.Table("t")], checkpoint_directory=URL),
    ],
    ids=["save", "load", "export from", "export to", "follow", "spill", "replay local", "replay serve"],
)
def test_an_address_is_refused_by_its_scheme_and_nothing_is_made(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tandem.local() as client, pytest.raises(InvalidArgumentError, match="s3://bucket/run.*an address of 's3://'.*mount"):
        call(client)
    assert os.listdir(tmp_path) == []


def test_checkpoints_of_pytorch_programs_refuse_it_too(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
    from tandem.torch import checkpoint, serving

    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(1, 1)
    with tandem.local() as client:
        for call in (
            lambda: checkpoint.save(URL, 1, model, None, client),
            lambda: checkpoint.load(URL, model, None, client),
            lambda: checkpoint.latest(URL),
            lambda: serving.export(model, URL),
            lambda: serving.load_for_serving(URL, client),
        ):
            with pytest.raises(InvalidArgumentError, match="an address of 's3://'"):
                call()
    assert os.listdir(tmp_path) == []
