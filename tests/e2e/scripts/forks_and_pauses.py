"""A training script that forks at every second of its steps, and takes the agent out for a while in the middle."""

import os
import time

import probe_agent
import torch
from torch import nn

torch.set_num_threads(1)
probe_agent.start()
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def fork() -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(2)
            probe_agent.start()
            probe_agent.stop()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.001)
    assert ended[1] == 0, ended


for number in range(100):
    train(1)
    if number % 2:
        fork()
probe_agent.stop()
train(200)
probe_agent.start()
began = time.perf_counter()
train(5)
print(time.perf_counter() - began, flush=True)
