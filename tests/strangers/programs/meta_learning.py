import common
import higher
import torch
from torch import nn

common.begin()
model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
outer, inner = (torch.optim.SGD(model.parameters(), lr=0.05) for _ in range(2))
for _ in range(5):
    outer.zero_grad()
    for _ in range(2):
        x = torch.randn(6, 1)
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, differentiable):
            for _ in range(2):
                differentiable.step((fast(x) - x.sin()).square().mean())
            loss = (fast(x) - x.sin()).square().mean()
            loss.backward()
            common.said("loss", loss)
    outer.step()
common.weights(model)
