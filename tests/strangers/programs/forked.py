"""Training that a notebook's launcher starts: in two forked children of this process, which takes what they learned."""

from __future__ import annotations

import os
import socket
import sys
import tempfile

import common
import torch
from torch import nn

STEPS = 8


def lightning_fit(strategy: str) -> None:
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Told(BoringModel):
        def on_train_batch_end(self, outputs, batch, batch_index: int) -> None:
            if self.global_rank == 0:
                common.said("loss", outputs["loss"])

    model = Told()
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, limit_train_batches=4, limit_val_batches=2,
            logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=directory,
        )  # fmt: skip
        trainer.fit(model)
    common.weights(model)


def accelerated() -> None:
    from accelerate import Accelerator

    common.begin()
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(list(zip(*common.digits(64))), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        model.train()
        for images, classes in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), classes)
            accelerator.backward(loss)
            optimizer.step()
            if accelerator.is_main_process:
                common.said("loss", loss)
        model.eval()
        right = 0
        with torch.no_grad():
            for images, classes in loader:
                right += int(accelerator.gather_for_metrics(model(images).argmax(1) == classes).sum())
        if accelerator.is_main_process:
            common.said("right", right)
    if accelerator.is_main_process:
        common.weights(accelerator.unwrap_model(model))
    accelerator.end_training()


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


if __name__ == "__main__":
    common.begin()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if sys.argv[1] == "accelerate":
        from accelerate import notebook_launcher

        notebook_launcher(accelerated, num_processes=2, use_port=free_port())
    else:
        lightning_fit(sys.argv[1])
