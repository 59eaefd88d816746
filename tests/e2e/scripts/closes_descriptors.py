"""Closes every descriptor that it can, as a program does that becomes a daemon, and opens files that get their numbers. It
trains before and after, the last steps beside a thread of its own, and writes to its files again once it is told to end."""

import os
import pathlib
import sys
import threading
import time

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)
how, directory = sys.argv[1], pathlib.Path(sys.argv[2])
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())


train(20)
if how == "range":
    os.closerange(3, 4096)
else:
    for number in range(3, 4096):
        try:
            os.close(number)
        except OSError:
            pass
files = [open(directory / str(number), "w+") for number in range(300)]
for number, file in enumerate(files):
    print(number, file=file, flush=True)
train(20)
beside = threading.Thread(target=lambda: model(torch.ones(8, 16)))
beside.start()
beside.join()
train(20)
while not (directory / "seen").exists():
    time.sleep(0.02)
for file in files:
    print("the end", file=file, flush=True)
