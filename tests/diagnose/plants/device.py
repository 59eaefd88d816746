"""Training on a GPU, healthy in the ways in which people do it (--as), or with something wrong (--plant).

The model is a GPT; with a batch of 32 the device is busy for longer than the host needs to launch its work, and with one of 8 about as
long. `tiny` layers take the device much less time than that.
"""

from __future__ import annotations

import argparse
import time

import common
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANTS = (
    "pageable",
    "launches",
    "items",
    "waits",
    "double",
    "foreach",
    "starved",
    "cache",
    "work",
    "host",
    "attention",
    "stall",
)
LOOPS = ("quiet", "logged", "loader", "accumulated", "scaled", "compiled", "convolutions")
parser = argparse.ArgumentParser()
parser.add_argument("--plant", choices=["none", *PLANTS], default="none")
parser.add_argument("--as", dest="loop", choices=LOOPS, default="quiet")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()
WIDTH, HEADS, LAYERS, LENGTH, WORDS = 1024, 16, 8, 512, 4096
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if args.plant == "attention":
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            scores = (q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).masked_fill(~mask, float("-inf"))
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        if args.plant == "host":
            # A statistic that numpy computes.
            x = x * (1 + 1e-6 * float(x.detach().float().cpu().numpy().std()))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.ln_f(x))


class Words(Dataset):
    """Windows of random words; each takes `seconds` to make."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.words = torch.randint(0, WORDS, (1 << 20,), generator=torch.Generator().manual_seed(1))
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.seconds:
            time.sleep(self.seconds)
        begin = index * 8 % (len(self.words) - LENGTH - 1)
        window = self.words[begin : begin + LENGTH + 1]
        return window[:-1], window[1:]


def tiny() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(60):
        layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def convolutions() -> nn.Module:
    def block(given: int, made: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU())

    blocks = [
        block(3, 64, 2),
        *(block(64, 64, 1) for _ in range(4)),
        block(64, 128, 2),
        *(block(128, 128, 1) for _ in range(4)),
    ]
    return nn.Sequential(*blocks, block(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))


def vectors() -> None:
    """Trains the tiny layers, of which the device could take many at a time."""
    net = tiny().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    for step in range(args.steps):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)


def images() -> None:
    """Trains on images, with a scaler, and reads the loss in each step."""
    net = convolutions().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler()
    x = torch.randn(256, 3, 176, 176).pin_memory()
    y = torch.randint(0, 100, (256,)).pin_memory()
    total = 0.0
    for _ in range(args.steps):
        given = x.to("cuda", non_blocking=True, memory_format=torch.channels_last)
        target = y.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(net(given), target)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    print(total / args.steps)


def words() -> None:
    """Trains the GPT."""
    net = GPT().cuda()
    if args.plant == "double":
        net = net.double()
    called = torch.compile(net) if args.loop == "compiled" else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False if args.plant == "foreach" else None)
    scaler = torch.amp.GradScaler(enabled=args.loop == "scaled")
    size = 2 if args.plant == "double" else args.batch
    has_loader = args.loop == "loader" or args.plant == "starved"
    seconds = 0.02 if args.plant == "starved" else 0.0
    loader = DataLoader(Words(seconds), size, shuffle=True, num_workers=2 if has_loader else 0, pin_memory=has_loader)
    batches = iter(loader)
    frames = torch.randn(64 << 20) if args.plant == "pageable" else None
    kind = torch.float16 if args.loop == "scaled" else torch.bfloat16
    micro_steps = 4 if args.loop == "accumulated" else 1
    losses = []
    for step in range(args.steps // micro_steps):
        for _ in range(micro_steps):
            ids, targets = (part.to("cuda", non_blocking=True) for part in next(batches))
            if frames is not None:
                frames.to("cuda")
            with torch.autocast("cuda", kind, enabled=args.plant != "double"):
                logits = called(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / micro_steps
            scaler.scale(loss).backward()
        if args.plant == "waits":
            for parameter in net.parameters():
                parameter.grad.mul_(1.0)
                torch.cuda.synchronize()
        if args.loop in ("accumulated", "scaled"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if args.plant == "items":
            losses = [float(value) for value in logits[0, 0, :400]]
        elif args.plant == "cache":
            torch.cuda.empty_cache()
        elif args.plant == "work":
            torch.cuda.synchronize()
            common.burn(0.015)
        elif args.plant == "stall" and step % 20 == 19:
            time.sleep(0.4)
        if args.loop in ("logged", "scaled", "loader"):
            losses.append(loss.item())
        elif step % 50 == 0:
            print(step, loss.item(), flush=True)


if args.plant == "launches":
    vectors()
elif args.loop == "convolutions":
    images()
else:
    words()
