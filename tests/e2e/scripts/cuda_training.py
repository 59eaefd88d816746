"""Training on a GPU in the ways people do it: `cuda_training.py PROGRAM [STEPS]` prints the losses, to the last digit, as JSON.

Everything is drawn from one seed and runs by deterministic algorithms, so two runs of a program print the same.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, WIDTH, CLASSES = 64, 256, 10


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(4)), nn.Linear(WIDTH, CLASSES)).cuda()


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield torch.randn(BATCH, WIDTH, device="cuda"), torch.randint(0, CLASSES, (BATCH,), device="cuda")


def loop(model: nn.Module, steps: int, given: Iterator | None = None) -> list[torch.Tensor]:
    """The plain loop. Losses stay on the device, so that nothing waits for it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _, (x, y) in zip(range(steps), given or batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def eager(steps: int) -> list[torch.Tensor]:
    return loop(make_model(), steps)


def mixed_precision(steps: int) -> list[torch.Tensor]:
    model, scaler = make_model(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for step, (x, y) in zip(range(2 * steps), batches()):
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def compiled(steps: int) -> list[torch.Tensor]:
    return loop(torch.compile(make_model()), steps)


def compiled_graphs(steps: int) -> list[torch.Tensor]:
    """torch.compile that captures CUDA graphs."""
    model = torch.compile(make_model(), mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _, (x, y) in zip(range(steps), batches()):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def captured(steps: int) -> list[torch.Tensor]:
    """A whole step in one CUDA graph, as torch's notes on CUDA do it."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = next(batches())

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_loss = step()
    losses = []
    for _, (new_x, new_y) in zip(range(steps), batches()):
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        losses.append(captured_loss.detach().clone())
    return losses


def graphed_callables(steps: int) -> list[torch.Tensor]:
    model = make_model()
    sample = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)
    model[1] = torch.cuda.make_graphed_callables(model[1], (sample,))
    return loop(model, steps)


def streams(steps: int) -> list[torch.Tensor]:
    """Batches come by a stream of their own, as a prefetcher does it."""

    def prefetched() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        aside = torch.cuda.Stream()
        given = batches()
        while True:
            with torch.cuda.stream(aside):
                x, y = next(given)
                x = x * 2
            torch.cuda.current_stream().wait_stream(aside)
            x.record_stream(torch.cuda.current_stream())
            yield x, y

    return loop(make_model(), steps, prefetched())


def loader(steps: int) -> list[torch.Tensor]:
    """A DataLoader with workers and pinned memory."""
    data = TensorDataset(torch.randn(BATCH * steps, WIDTH), torch.randint(0, CLASSES, (BATCH * steps,)))
    batches = DataLoader(data, batch_size=BATCH, num_workers=2, pin_memory=True, shuffle=True)
    return loop(make_model(), steps, ((x.cuda(non_blocking=True), y.cuda(non_blocking=True)) for x, y in batches))


def ddp(steps: int) -> list[torch.Tensor]:
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    losses = loop(nn.parallel.DistributedDataParallel(make_model(), device_ids=[0]), steps)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return losses


def fsdp(steps: int) -> list[torch.Tensor]:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    model = make_model()
    for block in model[1:5]:
        fully_shard(block)
    losses = loop(fully_shard(model), steps)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return losses


def checkpointed(steps: int) -> list[torch.Tensor]:
    """Activations are computed again in backward."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    return loop(Checkpointed(), steps)


def trainer(steps: int) -> list[torch.Tensor]:
    """Hugging Face's."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    losses: list[torch.Tensor] = []

    class Keep(TrainerCallback):
        def on_log(self, arguments, state, control, logs=None, **others):
            if logs and "loss" in logs:
                losses.append(torch.tensor(logs["loss"]))

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=32, vocab_size=100))
    ids = torch.randint(0, 100, (8 * steps, 32))
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory, per_device_train_batch_size=8, num_train_epochs=1, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True, bf16=True, max_steps=steps,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in ids]
        with contextlib.redirect_stdout(sys.stderr):
            Trainer(model, arguments, train_dataset=data, callbacks=[Keep()]).train()
    return losses


def lightning(steps: int) -> list[torch.Tensor]:
    import lightning

    losses: list[torch.Tensor] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch, number):
            x, y = batch
            loss = F.cross_entropy(self.model(x), y)
            losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = TensorDataset(torch.randn(BATCH * steps, WIDTH), torch.randint(0, CLASSES, (BATCH * steps,)))
    with contextlib.redirect_stdout(sys.stderr):
        lightning.Trainer(
            max_epochs=1, accelerator="gpu", devices=1, precision="16-mixed", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(Module(), DataLoader(data, batch_size=BATCH, shuffle=True))  # fmt: skip
    return losses


PROGRAMS: dict[str, Callable[[int], list[torch.Tensor]]] = {
    function.__name__: function
    for function in (
        *(eager, mixed_precision, compiled, compiled_graphs, captured, graphed_callables),
        *(streams, loader, ddp, fsdp, checkpointed, trainer, lightning),
    )
}


def main() -> None:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    losses = PROGRAMS[sys.argv[1]](steps)
    print(json.dumps([loss.item().hex() for loss in losses]))


if __name__ == "__main__":
    main()
