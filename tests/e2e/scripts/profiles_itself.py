"""Trains a small model, and does between two steps what a file of commands says: starts and stops a profiler of its own, opens
and closes ranges, stands still, raises and goes on."""

import pathlib
import sys
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

commands, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
own = None
ranges: list[record_function] = []


def train(said: str) -> str:
    """Until there is another command."""
    while (command := commands.read_text()) == said or not command:
        loss = model(torch.rand(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if command == "raise":
            raise ValueError("the program's own")
        time.sleep(pause)
    return command


said = ""
while said != "end":
    try:
        said = train(said)
    except ValueError as error:
        print(f"caught {error}", flush=True)
        commands.write_text(said := "idle")
    if said == "profile":
        own = profile(activities=[ProfilerActivity.CPU])
        own.start()
    elif said == "stop" and own is not None:
        own.stop()
        seen = sum(event.count for event in own.key_averages() if event.key == "aten::addmm")
        print(f"own profiler saw {seen} calls of addmm", flush=True)
        own = None
    elif said == "open":
        ranges = [record_function(f"range {number}") for number in range(20)]
        for one in ranges:
            one.__enter__()
        print("opened", flush=True)
    elif said == "close":
        while ranges:
            ranges.pop().__exit__(None, None, None)
        print("closed", flush=True)
    while said == "idle" and commands.read_text() == "idle":
        time.sleep(0.01)
