"""One process whose loop does more than train: work, reads of tensors, copies, stalls, one long step, validation, samples that
the model generates, checkpoints, a thread that holds the GIL."""

from __future__ import annotations

import pathlib
import random
import tempfile
import threading
import time

import common
import torch
from torch import nn

args = common.arguments(
    "work", "named", "items", "copies", "stall", "hiccup", "once", "validation", "generation", "checkpoint", "gil"
)
torch.set_num_threads(1)
net = common.model()
optimizer = torch.optim.AdamW(net.parameters())
samples = common.Samples(1 << 20)
history: list[float] = []
frames = torch.randn(2048, 512)
state = {"weights": [torch.randn(1024, 1024) for _ in range(int(24 * args.strength) or 1)]}
path = pathlib.Path(tempfile.mkdtemp()) / "state.pt"
now_and_then = set(random.Random(7).sample(range(args.steps), args.steps // 20))


def validate() -> None:
    net.eval()
    with torch.no_grad():
        for begin in range(0, int(4096 * args.strength), 64):
            rows = torch.arange(begin, begin + 64) % 512
            nn.functional.cross_entropy(net(samples.x[rows]), samples.y[rows])
    net.train()


def pump() -> None:
    while True:
        common.burn(0.02 * args.strength)
        time.sleep(0.001)


if args.plant == "gil":
    threading.Thread(target=pump, name="Pump", daemon=True).start()
for step in range(args.steps):
    rows = torch.arange(step * 64, step * 64 + 64) % 512
    x, y = samples.x[rows], samples.y[rows]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    if args.plant == "work":
        common.burn(0.008 * args.strength)
    elif args.plant == "named":
        import probe_agent

        with probe_agent.span("histograms"):
            common.burn(0.008 * args.strength)
    elif args.plant == "items":
        history = [float(value) for value in x[0:8, : int(256 * args.strength)].flatten()]
    elif args.plant == "copies":
        for _ in range(int(8 * args.strength) or 1):
            frames = frames.t().contiguous().t().clone(memory_format=torch.contiguous_format)
    elif args.plant == "stall" and step % 20 == 19:
        time.sleep(0.2 * args.strength)
    elif args.plant == "hiccup" and step in now_and_then:
        time.sleep(0.2 * args.strength)
    elif args.plant == "once" and step == args.steps * 2 // 3:
        time.sleep(1.5 * args.strength)
    elif args.plant == "validation" and step % 20 == 19:
        validate()
    elif args.plant == "generation" and step % 12 == 11:
        with torch.no_grad():
            for _ in range(int(48 * args.strength)):
                x = nn.functional.pad(net(x), (0, 246))
    elif args.plant == "checkpoint" and step % 20 == 19:
        torch.save(state, path)
path.unlink(missing_ok=True)
