"""Optimizers: one that updates a large embedding of which a batch uses few rows, and one of the program's own that computes parameter
by parameter."""

from __future__ import annotations

import common
import torch
from torch import nn

args = common.arguments("embedding", "one-by-one")
torch.set_num_threads(1)
torch.manual_seed(0)
WIDTH, SCALES = 32, 40


class ByHand(torch.optim.Optimizer):
    """Adds a few smoothed updates to each parameter."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                for _ in range(round(25 * args.strength)):
                    mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
                    parameter.add_(mean, alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        words = round(200_000 * args.strength) if args.plant == "embedding" else 512
        self.words = nn.Embedding(words, WIDTH)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(SCALES))
        self.layers = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(ids).mean(1) * torch.stack(list(self.scales)).mean(0))


net = Net()
make = ByHand if args.plant == "one-by-one" else lambda parameters: torch.optim.AdamW(parameters, fused=True)
optimizer = make(net.parameters())
for _ in range(args.steps):
    ids = torch.randint(0, net.words.num_embeddings, (64, 16))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(ids), ids[:, 0] % 10).backward()
    optimizer.step()
