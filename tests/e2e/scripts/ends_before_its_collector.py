"""Trains a step, and ends before its collector's socket has its name: it gets that while the agent sends its last rows."""

import atexit
import os
import sys
import threading
import time

import torch
from torch import nn


def let_it_answer() -> None:
    time.sleep(0.2)  # By then the agent has tried to connect. It has two seconds to send its last rows.
    os.rename(*sys.argv[1:])


model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
# The agent has connected, or tries to: what is registered now runs before its own end.
atexit.register(lambda: threading.Thread(target=let_it_answer, daemon=True).start())
