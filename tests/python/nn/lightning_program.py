# SPDX-License-Identifier: Apache-2.0
"""A LightningModule that is trained with a table and with torch.nn.EmbeddingBag, which must give the same."""

import lightning
import numpy as np
import torch
import torch.distributed as dist
from bags import ROWS, Model, rows_of, twin_of

import tandem

# Arguments of the Trainer. 88 bags are 11 batches, so that the last accumulation is of fewer batches.
PROGRAMS = {
    "plain": {},
    "accumulation": {"accumulate_grad_batches": 4},
    "clipping": {"gradient_clip_val": 0.05, "accumulate_grad_batches": 3},
}
BAGS, BATCH, EPOCHS = 88, 8, 2


class Ids(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.ids = torch.randint(0, ROWS, (BAGS, 3), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return BAGS

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.ids[i]


class Module(lightning.LightningModule):
    def __init__(self, bag) -> None:
        super().__init__()
        self.model = Model(bag)

    def training_step(self, ids, _):
        return self.model(ids.flatten()).square().mean()

    def validation_step(self, ids, _):
        self.log("loss", self.model(ids.flatten()).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        if isinstance(self.model.bag, tandem.nn.EmbeddingBag):
            self.model.bag.follow(optimizer)
        return [optimizer], [scheduler]


def fit(bag, strategy=lambda: "auto", **options) -> Module:
    """Trains twice, as a program does that goes on after a look at the result."""
    module = Module(bag)
    loader = torch.utils.data.DataLoader(Ids(), batch_size=BATCH)
    for _ in range(2):
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, strategy=strategy(), **options,
        )
        trainer.fit(module, loader, loader)
    return module


def compare(bag: "tandem.nn.EmbeddingBag", program: str, **options) -> None:
    client, table = bag.client, bag.tables[0].name
    reference = fit(twin_of(client, table), **PROGRAMS[program], **options)
    before = client.step
    module = fit(bag, **PROGRAMS[program], **options)
    bag.flush()
    batches = BAGS // BATCH // client.world_size + (BAGS // BATCH % client.world_size > 0)
    assert client.step - before == 2 * EPOCHS * -(-batches // PROGRAMS[program].get("accumulate_grad_batches", 1))
    if dist.is_initialized():
        dist.barrier()
    np.testing.assert_allclose(rows_of(client, table), reference.model.bag.weight.detach().numpy(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(module.model.dense.weight, reference.model.dense.weight, rtol=1e-4, atol=1e-6)
