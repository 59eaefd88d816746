"""Batches of sequences: padded far beyond their longest one, of lengths that vary from batch to batch, or drawn by a sampler that
shuffles all that is left for each batch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import common
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

args = common.arguments("padding", "lengths", "sampler")
torch.set_num_threads(1)
torch.manual_seed(0)
BATCH, LENGTH, WORDS = 16, 32, 64


class Sequences(Dataset):
    """Tokens of which none is 0, which stands for padding. Those of one batch have the same length."""

    def __init__(self) -> None:
        rng = random.Random(1)
        longest = LENGTH + round(160 * args.strength) if args.plant == "lengths" else LENGTH
        self.tokens = torch.randint(1, WORDS, (longest,), generator=torch.Generator().manual_seed(1))
        self.lengths = [rng.randint(LENGTH, longest) for _ in range(args.steps)]

    def __len__(self) -> int:
        return BATCH * args.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokens[: self.lengths[index // BATCH]]


class ShufflesForEachBatch(Sampler):
    """Shuffles what is left of the epoch before it takes a batch from it."""

    def __iter__(self) -> Iterator[int]:
        left = list(range(round(20_000 * args.strength)))
        for _ in range(args.steps):
            random.shuffle(left)
            yield from (index % (BATCH * args.steps) for index in left[:BATCH])

    def __len__(self) -> int:
        return BATCH * args.steps


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    """To a fixed length with --plant padding, else to that of the longest sample."""
    longest = max(len(sample) for sample in samples)
    if args.plant == "padding":
        longest = round(LENGTH * (1 + 3 * args.strength))
    return torch.stack([nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples])


net = nn.Sequential(nn.Embedding(WORDS, 128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, WORDS))
optimizer = torch.optim.AdamW(net.parameters())
sampler = ShufflesForEachBatch() if args.plant == "sampler" else None
for ids in DataLoader(Sequences(), BATCH, sampler=sampler, collate_fn=pad):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.flatten(), ignore_index=0).backward()
    optimizer.step()
