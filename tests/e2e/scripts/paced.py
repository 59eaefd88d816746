"""Trains for as many steps as it is told, none of them shorter than it is told, and ends with the status it is told.

What it prints depends on nothing but the number of steps: losses, and a digest of the parameters at the end. What its own
thread took of a processor for each hundred steps goes to the file that it is told.
"""

import hashlib
import sys
import time

import torch

steps, least, status, times = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with open(times, "w", buffering=1) as took:
    used = time.thread_time()
    for step in range(steps):
        began = time.monotonic()
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.9f}", flush=True)
            print(step, time.thread_time() - used, file=took)
            used = time.thread_time()
        time.sleep(max(0.0, least - (time.monotonic() - began)))
digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
print(f"parameters {digest.hexdigest()}", flush=True)
sys.exit(status)
