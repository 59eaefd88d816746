"""Calls: many of small operations, a model in Python, batches of one sample, sequences whose lengths differ, a layer that the
optimizer does not have, an optimizer that is made anew in each step, a backward pass for each loss, a scaler that skips steps,
a model that generates while it trains, and a little Python between the parts of a step."""

from __future__ import annotations

import math
import time

import common
import torch
from torch import nn

args = common.arguments(
    "operations",
    "python",
    "average",
    "one",
    "quadratic",
    "forgotten",
    "anew",
    "losses",
    "skipped",
    "generate",
    "hashing",
)
torch.set_num_threads(1)
torch.manual_seed(0)
F = nn.functional
WIDTH = 128


class Mixing(nn.Module):
    """Attention as it is written down: its time grows with the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(WIDTH)).softmax(-1)
        return x + self.out(weights @ v)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # A moving average of weights has two operations for each of them.
        layers = round(60 * args.strength) if args.plant == "average" else 0
        self.tokens = nn.Embedding(64, WIDTH)
        self.mixing = Mixing()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2 * layers))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.mixing(self.tokens(ids))
        if len(self.scales) > 0:
            x = x * torch.stack(list(self.scales)).mean(0)
        x = x + self.down(F.gelu(self.up(x)))
        if args.plant == "python":
            common.burn(0.008 * args.strength)
        if args.plant == "operations":
            # A score for each token of each sample, one after the other.
            total = x.new_zeros(())
            for number in range(round(500 * args.strength)):
                total = total + x[number % len(x), number % x.shape[1], 0]
            x = x + 1e-6 * total
        return self.head(x)


net = Net()
parameters = [
    parameter for name, parameter in net.named_parameters() if args.plant != "forgotten" or not name.startswith("head")
]
optimizer = torch.optim.AdamW(parameters)
average = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=args.plant == "skipped")
lengths = torch.Generator().manual_seed(1)
batch = 1 if args.plant == "one" else 16
for step in range(args.steps):
    began = time.thread_time()
    length = 4 if args.plant == "one" else 32
    if args.plant == "quadratic":
        length = int(torch.randint(32, 32 + int(480 * args.strength), (1,), generator=lengths))
    ids = torch.randint(0, 64, (batch if args.plant != "quadratic" else 4, length))
    if args.plant == "anew":
        optimizer = torch.optim.AdamW(parameters)
    optimizer.zero_grad()
    logits = net(ids).flatten(0, 1)
    if args.plant == "losses":
        for _ in range(max(1, round(2 * args.strength))):
            logits.pow(2).mean().backward(retain_graph=True)
    loss = F.cross_entropy(logits, ids.flatten())
    if args.plant == "skipped" and step % round(2 / args.strength) == 0:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if args.plant == "average":
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                average[name].mul_(0.99).add_(parameter, alpha=0.01)
    if args.plant == "hashing":
        common.burn(0.33 * args.strength * (time.thread_time() - began))
    if args.plant == "generate" and step % 10 == 9:
        net.eval()
        said = ids[:1, :8]
        with torch.no_grad():
            for _ in range(round(40 * args.strength)):
                said = torch.cat([said, net(said[:, -32:])[:, -1:].argmax(-1)], dim=1)
        net.train()
