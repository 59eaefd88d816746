"""Training loops that frameworks bring along."""

from __future__ import annotations

import tempfile

import torch
from networks import Batch, Task
from torch.utils.data import DataLoader, Dataset, TensorDataset


def lightning(task: Task, steps: int, size: int) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.net

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            loss = task.loss(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Batch, number: int) -> None:
            self.log("held", task.loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    data = TensorDataset(task.inputs, task.targets)
    held = TensorDataset(task.inputs[: 4 * size], task.targets[: 4 * size])
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            default_root_dir=directory,
            enable_checkpointing=True,
        )
        trainer.fit(Module(), DataLoader(data, batch_size=size, shuffle=True), DataLoader(held, batch_size=size))


class Tokens(Dataset):
    def __init__(self, task: Task) -> None:
        self.ids = task.inputs

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def hugging_face(task: Task, steps: int, size: int, **more: object) -> None:
    """GPT-2, small, with the Trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            max_steps=steps,
            per_device_train_batch_size=size,
            logging_steps=20,
            report_to=[],
            use_cpu=True,
            **more,
        )
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(task)).train()


def accelerated(task: Task, steps: int, size: int) -> None:
    from accelerate import Accelerator

    helper = Accelerator(cpu=True)
    data = DataLoader(TensorDataset(task.inputs, task.targets), batch_size=size, shuffle=True)
    net, optimizer, loader = helper.prepare(task.net, torch.optim.AdamW(task.net.parameters()), data)
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            helper.backward(task.loss(net(x), y))
            optimizer.step()
            done += 1
