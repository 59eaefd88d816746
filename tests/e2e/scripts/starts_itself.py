"""A training script that starts the agent by itself, in the middle of nothing, and configures it in the process."""

import probe_agent
import torch
from torch import nn

probe_agent.start()
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    if step == 5:
        # From the step that begins next: this one.
        probe_agent.configure(detail="off")
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
