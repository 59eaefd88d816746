"""Trains a little on each rank and appends to tables of its own. Ranks do not agree about one of them."""

from __future__ import annotations

import os
import sys

import probe_agent
import torch

rank = int(os.environ.get("RANK", "0"))
steps = int(sys.argv[1])
mine = probe_agent.table("my.metrics", loss=float, tokens=int, split=str)
kinds = {"loss": float} if rank == 0 else {"loss": int, "lr": float}
disputed = probe_agent.table("my.disputed", kinds)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    loss = model(torch.ones(4, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mine.append(loss=step / 2, tokens=100 * rank + step, split="odd" if step % 2 else "even")
    disputed.append(loss=step)
probe_agent.table("my.empty", at=int)
# One write: both ranks write to one file, without a buffer.
print(f"trained {steps} steps\n", end="")
