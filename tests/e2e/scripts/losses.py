"""Trains a small network with a DataLoader and dropout and prints every loss to the last bit; then ends as it is told:
`well`, `exit` (os._exit with status 7), or `wait` (until it is ended)."""

import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Whatever started the tests may ignore it, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(512, 16))
for _ in range(4):
    for (x,) in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = model(x + torch.randn_like(x) * 0.1).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
sys.stdout.flush()
if sys.argv[1] == "exit":
    os._exit(7)
if sys.argv[1] == "wait":
    print("trained", file=sys.stderr, flush=True)
    time.sleep(600)
