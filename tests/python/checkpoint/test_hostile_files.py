# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of somebody else: damaged, cut off, or made to do harm. They are loaded or refused in words."""

import json
import os
import pathlib
import pickle
import random
import resource
import shutil
import subprocess
import sys

import pytest
from processes import start_script, tandem_binary

import tandem

torch = pytest.importorskip("torch", reason="PyTorch is not installed (scripts/python-env --torch)")
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from tandem.torch import checkpoint  # noqa: E402

# Of processes that import torch.
TORCH_DEADLINE_S = 200.0

# Kept as text, because a process with little memory runs it too.
MUTATE = """
import random

def mutate(content, draw):
    content = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content) + 1)
        kind = draw.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(content):
            content[at] = draw.randrange(256)
        elif kind == 2:
            number = draw.choice([0, 1, 0x7F, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 64) - 1])
            size = draw.choice([1, 2, 4, 8])
            content[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif kind == 3:
            del content[at : at + draw.randrange(16)]
        else:
            content = content[:at]
    return bytes(content)
"""
exec(MUTATE)
mutate = globals()["mutate"]


class Saved:
    """A small model, and a checkpoint of it."""

    def __init__(self, root: pathlib.Path) -> None:
        self.client = tandem.local(timeout=20)
        self.table = tandem.nn.EmbeddingBag(4, name="user", client=self.client, optimizer=tandem.optim.SGD(lr=0.1))
        self.model = torch.nn.ModuleDict({"bag": self.table, "dense": torch.nn.Linear(4, 1)})
        self.optimizer = torch.optim.Adam(self.model["dense"].parameters(), lr=0.01)
        self.model["dense"](self.table(torch.tensor([[1, 2], [3, 4]]))).sum().backward()
        self.optimizer.step()
        self.table.flush()
        self.path = pathlib.Path(checkpoint.save(root / "good", 1, self.model, self.optimizer, self.client))

    def __enter__(self) -> "Saved":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def with_file(self, root: pathlib.Path, name: str, content: bytes) -> pathlib.Path:
        """Returns a checkpoint below `root` with right checksums in which a file has that content."""
        changed = tandem._core.begin_checkpoint(str(root), 1)
        shutil.copytree(self.path, changed, dirs_exist_ok=True, ignore=shutil.ignore_patterns("MANIFEST"))
        (pathlib.Path(changed) / name).write_bytes(content)
        return pathlib.Path(tandem._core.commit_checkpoint(changed, json.dumps({"step": "1"}), []))

    def load(self, path: pathlib.Path) -> None:
        checkpoint.load(path, self.model, self.optimizer, self.client)


class TestTorchPart:
    @pytest.mark.parametrize("name, count", [("TORCH.json", 80), (".metadata", 80), ("__0_0.distcp", 80)])
    def test_mutations_are_loaded_or_refused(self, tmp_path, name, count):
        draw = random.Random(1)
        with Saved(tmp_path) as saved:
            good = (saved.path / name).read_bytes()
            refused = 0
            for _ in range(count):
                path = saved.with_file(tmp_path / "bad", name, mutate(good, draw))
                try:
                    saved.load(path)
                except (tandem.errors.TandemError, CheckpointException) as error:
                    refused += 1
                    assert str(error)
            assert refused > count // 4
            saved.load(saved.path)

    def test_500_mutations_of_the_metadata_take_little_memory(self, tmp_path):
        with Saved(tmp_path) as saved:
            path = str(saved.path)
        text = MUTATE + f"""
import os, resource, shutil
import tandem
from tandem.torch import _dense_reader
reader = _dense_reader.DenseReader({path!r})
metadata = {path!r} + "/.metadata"
good = open(metadata, "rb").read()
reader.read_metadata()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGESIZE") + (64 << 20),) * 2)
hostile = [mutate(good, draw) for draw in [random.Random(2)] for _ in range(500)]
# Memory that is named, and not there: an index of the memo, a byte array, a string.
hostile += [b"\\x80\\x05Kr\\x7f\\xff\\xff\\xff.".replace(b"Kr", b"K\\x01r"), b"\\x80\\x05\\x96" + (1 << 33).to_bytes(8, "little") + b".",
            b"\\x80\\x05\\x8e" + (1 << 33).to_bytes(8, "little") + b"."]
refused = 0
for content in hostile:
    with open(metadata, "wb") as file:
        file.write(content)
    try:
        reader.read_metadata()
    except (tandem.errors.DataLossError, tandem.errors.FailedPreconditionError) as error:
        refused += 1
        assert "MemoryError" not in str(error), (error, content)
print("refused", refused, "of", len(hostile), flush=True)
assert refused > 250
"""
        with start_script(tmp_path, text) as script:
            assert script.wait(TORCH_DEADLINE_S) == 0, script.output

    def test_values_in_files_outside_of_the_checkpoint_are_not_read(self, tmp_path):
        with Saved(tmp_path) as saved:
            metadata = pickle.loads((saved.path / ".metadata").read_bytes())
            places = metadata.storage_data
            for name in ("../secret", str(tmp_path / "secret"), "MANIFEST", "__none", "", 7):
                for place in places.values():
                    place.relative_path = name
                path = saved.with_file(tmp_path / "bad", ".metadata", pickle.dumps(metadata))
                with pytest.raises(tandem.errors.DataLossError, match="no file of values"):
                    saved.load(path)
            for place in places.values():
                place.relative_path, place.length = "__0_0.distcp", 1 << 40
            path = saved.with_file(tmp_path / "bad", ".metadata", pickle.dumps(metadata))
            with pytest.raises(tandem.errors.DataLossError, match="which has"):
                saved.load(path)

    def test_metadata_cannot_change_the_program(self, tmp_path):
        # Opcodes: torch's class Metadata, then a state for it that would set attributes of the class.
        harm = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\nN}X\x08\x00\x00\x00planted_K\x01s\x86b."
        with Saved(tmp_path) as saved:
            path = saved.with_file(tmp_path / "bad", ".metadata", harm)
            with pytest.raises(tandem.errors.FailedPreconditionError, match="it changes a type"):
                saved.load(path)
            assert not hasattr(torch.distributed.checkpoint.metadata.Metadata, "planted_")

    def test_allowing_code_is_warned_of(self, tmp_path):
        with Saved(tmp_path) as saved, pytest.warns(UserWarning, match="runs whatever code its files name"):
            checkpoint.load(saved.path, saved.model, saved.optimizer, saved.client, weights_only=False)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


class TestCommands:
    def run(self, *arguments: str) -> str:
        command = [tandem_binary(), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, preexec_fn=_limit, check=False)
        output = done.stdout + done.stderr
        assert done.returncode in (0, 1), (command, done.returncode, output)
        assert done.returncode == 0 or output.strip(), command
        return output

    def test_commands_refuse_damaged_checkpoints_in_words(self, tmp_path):
        draw = random.Random(3)
        with tandem.local(timeout=20) as client:
            client.create_table("user", 4, tandem.optim.SGD(lr=0.1))
            client.pull("user", list(range(50)))
            path = pathlib.Path(client.save_checkpoint(tmp_path / "root", 1))
        files = [path / name for name in os.listdir(path)]
        for file in files:
            good = file.read_bytes()
            for _ in range(5):
                file.write_bytes(mutate(good, draw))
                for command in ("ls", "verify", "digest", "show", "compact"):
                    self.run("ckpt", command, str(tmp_path / "root" if command == "ls" else path))
                self.run("ckpt", "export", str(path), "-o", str(tmp_path / "to"))
            file.unlink()
            os.mkfifo(file)
            self.run("ckpt", "digest", str(path))
            file.unlink()
            file.symlink_to("/dev/zero")
            self.run("ckpt", "digest", str(path))
            file.unlink()
            file.write_bytes(good)
        self.run("ckpt", "verify", str(path))
