"""Thousands of tiny modules a step, as fast as they go: more rows than a slow disk takes."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Identity() for _ in range(2000)], nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(1, 2)
for _ in range(400):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
