"""torch's own test Transformer on two ranks, each a way to share it out: under torchrun, or spawned here."""

from __future__ import annotations

import os
import sys
import tempfile

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed._tensor.common_dtensor import ModelArgs, Transformer

STEPS = 5


def model_of(manner: str) -> tuple[nn.Module, nn.Module]:
    """The module that is called, and the module that has the parameters."""
    torch.manual_seed(0)
    whole = Transformer(ModelArgs(dropout_p=0.0, use_attn_mask=False, weight_tying=False))
    mesh = dist.init_device_mesh("cpu", (2,))
    if manner == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in whole.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(whole, mesh=mesh)
        return whole, whole
    if manner == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for layer in whole.layers:
            parallelize_module(layer.feed_forward, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
        return whole, whole
    return nn.parallel.DistributedDataParallel(whole), whole


def pipeline(rank: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(rank)
    part = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(torch.randn(8, 8))
        else:
            schedule.step(target=torch.zeros(8, 8), losses=losses)
        optimizer.step()
        for loss in losses:
            common.said("loss", loss)
    if rank == 1:
        common.weights(part)


def train(manner: str, rank: int) -> None:
    if manner == "pipeline":
        return pipeline(rank)
    called, whole = model_of(manner)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01, foreach=manner != "tensor")
    torch.manual_seed(0 if manner == "tensor" else rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        tokens = torch.randint(8, (4, 16))
        loss = nn.functional.cross_entropy(called(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        if rank == 0:
            common.said("loss", loss)
    if rank == 0 and manner in ("ddp", "spawn"):
        common.weights(whole)
    return None


def run(rank: int, manner: str, rendezvous: str | None) -> None:
    common.begin()
    if rendezvous:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    else:
        dist.init_process_group("gloo")
    train(manner, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        with tempfile.TemporaryDirectory() as directory:
            torch.multiprocessing.spawn(run, ("spawn", f"{directory}/rendezvous"), nprocs=2)
    else:
        run(int(os.environ["RANK"]), sys.argv[1], None)
