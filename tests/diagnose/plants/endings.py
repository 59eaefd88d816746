"""Beginnings and ends: a second step that takes minutes, as one that is compiled does, an exception, and a step that does not end."""

from __future__ import annotations

import os
import time

import common
import torch
from torch import nn

args = common.arguments("start", "exception", "hang")
torch.set_num_threads(1)
net = common.model()
optimizer = torch.optim.AdamW(net.parameters())
samples = common.Samples(1 << 20)
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    optimizer.zero_grad()
    if args.plant == "start" and step == 1:
        # The rule begins at five minutes.
        time.sleep(300 + 30 * args.strength)
    loss = nn.functional.cross_entropy(net(samples.x[rows]), samples.y[rows])
    loss.backward()
    optimizer.step()
    if args.plant == "exception" and step == args.steps - 10:
        raise ValueError("a label is out of range")
    if args.plant == "hang" and step == args.steps - 10:
        time.sleep(20)
        os._exit(0)
