"""Samples in a file that is mapped into memory, of which the pages are thrown out again for some seconds at a time, as where memory is
short."""

from __future__ import annotations

import mmap
import os
import pathlib
import random
import tempfile
import time

import common
import torch
from torch import nn

args = common.arguments("paging")
torch.set_num_threads(1)
net = common.model(1024)
optimizer = torch.optim.AdamW(net.parameters())
samples = common.Samples(1 << 20, 1024)
directory = tempfile.TemporaryDirectory()
path = pathlib.Path(directory.name) / "samples"
PAGES = 2048
with path.open("wb") as file:
    for _ in range(PAGES // 256):
        file.write(os.urandom(256 * mmap.PAGESIZE))
    file.flush()
    os.fsync(file.fileno())
file = path.open("rb")
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
mapped.madvise(mmap.MADV_RANDOM)
rng = random.Random(7)
began = time.monotonic()
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    optimizer.zero_grad()
    # Memory is short for 5 seconds of 15.
    if args.plant == "paging" and (time.monotonic() - began) % 15 >= 10:
        mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    read = sum(mapped[rng.randrange(PAGES) * mmap.PAGESIZE] for _ in range(round(1000 * args.strength)))
    nn.functional.cross_entropy(net(samples.x[rows] + 1e-6 * read), samples.y[rows]).backward()
    optimizer.step()
mapped.close()
directory.cleanup()
