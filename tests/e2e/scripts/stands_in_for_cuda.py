"""Trains a small model on the host, with a stand-in for CUDA's caching allocator behind what torch.cuda.memory has: each step
allocates 3 MB, frees 2 MB and keeps the rest. Between two steps it does what a file of commands says."""

import pathlib
import sys
import time
from typing import Any

import torch
from torch import nn

commands = pathlib.Path(sys.argv[1])
MB, FRAMES = 1_000_000, [{"filename": __file__, "line": 40, "name": "step"}]
kept: list[int] = []
history: list[dict[str, Any]] | None = None


def record(enabled: str | None = "all", **settings: Any) -> None:
    global history
    history = None if enabled is None else []


def note(action: str, addr: int, size: int) -> None:
    if history is not None:
        time_us = time.time_ns() // 1000
        history.append(
            {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": FRAMES}
        )


def snapshot() -> dict[str, Any]:
    note("snapshot", 0, 0)
    blocks = [
        {"address": at, "size": MB, "requested_size": MB, "state": "active_allocated", "frames": FRAMES} for at in kept
    ]
    segment = {
        "device": 0,
        "address": 0,
        "total_size": MB * len(kept),
        "stream": 0,
        "segment_type": "large",
        "blocks": blocks,
    }
    return {"segments": [segment], "device_traces": [list(history or [])], "allocator_settings": {"a": 1.5, "b": None}}


torch._C._cuda_isHistoryEnabled = lambda: history is not None  # type: ignore[attr-defined]
torch.cuda.is_initialized = lambda: True
torch.cuda.memory._record_memory_history = record
torch.cuda.memory._snapshot = snapshot

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
said = ""
while (command := commands.read_text()) != "end":
    loss = model(torch.rand(4, 8)).square().mean()
    address = len(kept) * 4 * MB
    note("segment_alloc", address, MB)
    note("alloc", address, MB)
    note("alloc", address + MB, 2 * MB)
    loss.backward()
    note("free_requested", address + MB, 2 * MB)
    note("free_completed", address + MB, 2 * MB)
    kept.append(address)
    optimizer.step()
    optimizer.zero_grad()
    if command != said and command in ("on", "off"):
        torch.cuda.memory._record_memory_history("all" if command == "on" else None)
        print("switched", command, flush=True)
    said = command
    time.sleep(0.01)
