"""A pipeline of two stages: one that has more layers than the other, and few micro batches in a step."""

from __future__ import annotations

import common
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

args = common.arguments("stages", "bubble")
torch.set_num_threads(1)
rank, world = common.ranks()
layers = 4 + round(8 * args.strength) if args.plant == "stages" and rank == 1 else 4
micro_batches = 8
if args.plant == "bubble":
    micro_batches = 2 if args.strength >= 1 else 4
stage_layers = nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(256, 256), nn.GELU())])
stage = PipelineStage(stage_layers, rank, world, torch.device("cpu"))
schedule = Schedule1F1B(stage, micro_batches, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage_layers.parameters(), lr=0.01)
samples = common.Samples(1 << 20)
for _ in range(args.steps):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(samples.x)
    else:
        schedule.step(target=samples.x)
    optimizer.step()
common.leave(world)
