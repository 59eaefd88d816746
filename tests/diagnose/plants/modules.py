"""Modules: one that is slower than its siblings, one whose numbers are denormal, or whose gradients are, one that is wider than before,
activation checkpointing without need."""

from __future__ import annotations

import common
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

args = common.arguments("odd", "denormal", "vanishing", "wider", "recompute")
torch.set_num_threads(1)


class Vanish(torch.autograd.Function):
    """Makes the gradients of some samples denormal."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        few = round(len(grad) * args.strength)
        return torch.cat([torch.full_like(grad[:few], 1e-40), grad[few:]])


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        width = 512 + round(512 * args.strength) * (args.plant == "wider")
        self.up, self.down = nn.Linear(256, width), nn.Linear(width, 256)
        self.vanishing = number == 3 and args.plant == "vanishing"
        self.slow = number == 3 and args.plant == "odd"
        self.denormal = number == 3 and args.plant == "denormal"
        if self.denormal:
            with torch.no_grad():
                self.up.weight[: round(512 * args.strength)] *= 1e-20

    def forward(self, x):
        if self.slow:
            common.burn(0.006 * args.strength)
        if self.denormal:
            # Products of 1e-40, and gradients too small to change that.
            return x + self.down(nn.functional.gelu(self.up(1e-20 * x)))
        added = self.down(nn.functional.gelu(self.up(x)))
        return x + (Vanish.apply(added) if self.vanishing else added)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(number) for number in range(6))
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            again = args.plant == "recompute" and number < 6 * args.strength
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.head(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
samples = common.Samples(1 << 20)
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(samples.x[rows]), samples.y[rows]).backward()
    optimizer.step()
