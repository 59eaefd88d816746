"""The situations of tests/diagnose/pressure.py: programs whose owner suspects the wrong thing, or the right one.
`situations.py NAME [--steps N]`; `exchange` runs with two ranks.
"""

from __future__ import annotations

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

F = nn.functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def transformer(width: int, layers: int = 2) -> nn.Module:
    return nn.Sequential(nn.Embedding(256, width), *(Block(width) for _ in range(layers)), nn.Linear(width, 256))


class Decoded(Dataset):
    """Samples that have to be decoded: each costs `rounds` of work of this thread."""

    def __init__(self, count: int, shape: tuple[int, ...], rounds: int) -> None:
        self.count, self.shape, self.rounds = count, shape, rounds
        self.noise = torch.randn(*shape)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        total = 0
        for number in range(self.rounds):
            total += number * index % 7
        return self.noise + total % 3, index % 10


def hurry(steps: int) -> None:
    """A demo in half an hour, and attention is suspected: samples are decoded on the thread that trains."""

    class Tokens(Decoded):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            sample, label = super().__getitem__(index)
            return (sample.abs() * 40).long().clamp(max=255), label

    net = transformer(64)
    optimizer = torch.optim.AdamW(net.parameters())
    for tokens, _ in DataLoader(Tokens(8 * steps, (32,), 20_000), batch_size=8):
        optimizer.zero_grad()
        F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def busy(steps: int) -> None:
    """The processor is busy whenever one looks, and the forward pass is suspected: one worker decodes too slowly."""
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in DataLoader(Decoded(16 * steps, (512,), 30_000), batch_size=16, num_workers=1):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def norms(steps: int) -> None:
    """An expert suspects BatchNorm: convolutions take the time, as they do."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def copied(steps: int) -> None:
    """A profiler shows much aten::copy_, and the clone() calls of the model are suspected: frames come in another layout
    and type than the model's, and are converted whole in each step."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(512, 512), nn.Linear(512, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = x.clone()
            return self.head(torch.relu(self.body(x.clone())) + kept)

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    frames = torch.randn(512, 4096, dtype=torch.float64)
    labels = torch.arange(64) % 10
    for step in range(steps):
        batch = frames.t().contiguous()
        x = batch[step % 64 : step % 64 + 64].float()
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        optimizer.step()


def lengths(steps: int) -> None:
    """Each profile says something else, since sequences have 32 to 512 tokens."""
    net = transformer(64)
    optimizer = torch.optim.AdamW(net.parameters())
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        length = int(torch.randint(32, 513, (1,), generator=generator))
        tokens = torch.randint(0, 256, (2, length))
        optimizer.zero_grad()
        F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def exchange(steps: int) -> None:
    """Ranks of DistributedDataParallel differ a little, and all_reduce is suspected, which gradients need."""
    dist.init_process_group("gloo")
    net = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(256, 512), torch.arange(256) % 10
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        if os.environ["RANK"] == "0" and step % 10 == 0:
            print(step, loss.item())
    dist.destroy_process_group()


def production(steps: int) -> None:
    """A job of two days that may not be slowed down by looking."""
    net = transformer(64)
    optimizer = torch.optim.AdamW(net.parameters())
    tokens = torch.randint(0, 256, (8, 64))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


SITUATIONS = {of.__name__: of for of in (hurry, busy, norms, copied, lengths, exchange, production)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=SITUATIONS)
    parser.add_argument("--steps", type=int, default=240)
    given = parser.parse_args()
    SITUATIONS[given.name](given.steps)
