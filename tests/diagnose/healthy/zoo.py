"""Programs with nothing wrong in them that look unlike each other: `zoo.py NAME [--steps N]`."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

F = nn.functional
torch.set_num_threads(1)
torch.manual_seed(0)


def mlp(steps: int) -> None:
    """Tiny: a millisecond a step, where everything beside the model weighs much."""
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters())
    data = TensorDataset(torch.randn(32 * steps, 32), torch.randint(0, 10, (32 * steps,)))
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def cnn(steps: int) -> None:
    """Convolutions, two workers, accuracy by item() every tenth step."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    step = 0
    while step < steps:
        for x, y in loader:
            optimizer.zero_grad()
            out = net(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(step, loss.item(), (out.argmax(1) == y).float().mean().item())
            step += 1
            if step >= steps:
                return


def language(steps: int) -> None:
    """A transformer whose loss over a vocabulary of 4096 is computed outside of every module."""
    embed, head = nn.Embedding(4096, 128), nn.Linear(128, 4096)
    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.1), 2)
    net = nn.Sequential(embed, body, head)
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        ids = torch.randint(0, 4096, (4, 33))
        logits = net(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def lstm(steps: int) -> None:
    """Sequences of lengths that vary."""
    net, head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 5)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
    for step in range(steps):
        length = 8 + (step * 7) % 40
        out, _ = net(torch.randn(16, length, 32))
        loss = F.cross_entropy(head(out[:, -1]), torch.randint(0, 5, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def epochs(steps: int) -> None:
    """Epochs with a short validation and a small checkpoint each, the loader in the loop on data in memory."""
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(net.parameters())
    data = TensorDataset(torch.randn(64 * 60, 256), torch.randint(0, 10, (64 * 60,)))
    held = TensorDataset(torch.randn(256, 256), torch.randint(0, 10, (256,)))
    path = pathlib.Path(tempfile.mkdtemp()) / "net.pt"
    for _ in range(steps // 60):
        for x, y in DataLoader(data, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for x, y in DataLoader(held, batch_size=64):
                F.cross_entropy(net(x), y)
        net.train()
        torch.save(net.state_dict(), path)
    path.unlink(missing_ok=True)


def accumulate(steps: int) -> None:
    """Four micro steps for each step of the optimizer."""
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        for _ in range(4):
            F.cross_entropy(net(torch.randn(32, 256)), torch.randint(0, 10, (32,))).backward()
        optimizer.step()
        optimizer.zero_grad()


def autoencoder(steps: int) -> None:
    """Layers of one kind and of different sizes, which are no odd siblings."""
    sizes = [256, 128, 64, 32, 64, 128, 256]
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for _ in range(steps):
        x = torch.randn(128, 256)
        loss = F.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def warming(steps: int) -> None:
    """Memory that grows at first and then no more: a buffer of the newest samples."""
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.Adam(net.parameters())
    buffer: list[torch.Tensor] = []
    for _ in range(steps):
        buffer.append(torch.randn(256, 256))
        del buffer[:-80]
        x = buffer[len(buffer) // 2]
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()


def adversarial(steps: int) -> None:
    """Two networks, two optimizers."""
    make = lambda a, b: nn.Sequential(nn.Linear(a, 128), nn.LeakyReLU(), nn.Linear(128, b))  # noqa: E731
    generator, critic = make(16, 64), make(64, 1)
    of_generator, of_critic = (torch.optim.Adam(net.parameters()) for net in (generator, critic))
    for _ in range(steps // 2):
        fake = generator(torch.randn(64, 16))
        loss = critic(fake.detach()).mean() - critic(torch.randn(64, 64)).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = -critic(generator(torch.randn(64, 16))).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()


def two_ranks(steps: int) -> None:
    """Data parallel, each rank with workers of its own; rank 0 prints."""
    dist.init_process_group("gloo")
    net = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    )
    optimizer = torch.optim.AdamW(net.parameters())
    data = TensorDataset(torch.randn(32 * steps, 256), torch.randint(0, 10, (32 * steps,)))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=32, num_workers=1)):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        if os.environ["RANK"] == "0" and step % 20 == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    names = [
        name
        for name, value in list(globals().items())
        if callable(value) and getattr(value, "__module__", "") == "__main__"
    ]
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=names)
    parser.add_argument("--steps", type=int, default=240)
    given = parser.parse_args()
    sys.exit(globals()[given.name](given.steps))
