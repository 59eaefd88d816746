"""Switches that were left on and habits of programs: debugging, double precision, too many threads, garbage, recompiling,
a lock that others hold, and programs beside it."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time

import common
import torch
from torch import nn

args = common.arguments("garbage", "recompile", "anomaly", "profiler", "threads", "lock", "double", "nan", "beside")
torch.set_num_threads(16 if args.plant == "threads" else 1)
net = common.model()
samples = common.Samples(1 << 20)
if args.plant == "double":
    net, samples.x = net.double(), samples.x.double()
optimizer = torch.optim.AdamW(net.parameters())
free = threading.Lock()
kept = [{"number": number, "of": [number]} for number in range(int(60_000 * args.strength) * (args.plant == "garbage"))]


def flush() -> None:
    while True:
        with free:
            time.sleep(0.012 * args.strength)
        time.sleep(0.003)


if args.plant == "lock":
    threading.Thread(target=flush, name="Flush", daemon=True).start()
if args.plant == "recompile":
    torch._dynamo.config.recompile_limit = 1000
called = torch.compile(net, dynamic=False, backend="eager") if args.plant == "recompile" else net
busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10000))"
beside = round(2 * len(os.sched_getaffinity(0)) * args.strength) if args.plant == "beside" else 0
neighbours = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(beside)]
profiler = torch.profiler.profile() if args.plant == "profiler" else contextlib.nullcontext()
with torch.autograd.set_detect_anomaly(args.plant == "anomaly"), profiler:
    for step in range(args.steps):
        # A size that was not there before, every few steps.
        size = 64 - step // max(2, int(4 / args.strength)) % 60 if args.plant == "recompile" else 64
        rows = torch.arange(step * 64, step * 64 + size) % 512
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(called(samples.x[rows]), samples.y[rows])
        loss.backward()
        optimizer.step()
        if args.plant == "garbage":
            gc.collect()
        elif args.plant == "lock":
            with free:
                pass
        elif args.plant == "nan":
            import probe_agent

            probe_agent.log(loss=loss.item() if step < 100 else float("nan"))
for neighbour in neighbours:
    neighbour.kill()
