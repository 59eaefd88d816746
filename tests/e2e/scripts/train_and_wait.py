"""Eight steps of a tiny model, and then nothing until it is ended."""

import time

import probe_agent
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe_agent.log(loss=loss.item())
print("waiting", flush=True)
while True:
    time.sleep(0.1)
