import common
import torch
import torchsde
from torch import nn

common.begin()


class Diffusing(nn.Module):
    noise_type, sde_type = "diagonal", "ito"

    def __init__(self):
        super().__init__()
        self.drift, self.noise = nn.Linear(2, 2), nn.Linear(2, 2)

    def f(self, t, y):
        return self.drift(y)

    def g(self, t, y):
        return torch.sigmoid(self.noise(y))


sde = Diffusing()
optimizer = torch.optim.Adam(sde.parameters(), lr=0.01)
times = torch.linspace(0, 1, 3)
for number in range(5):
    optimizer.zero_grad()
    bm = torchsde.BrownianInterval(0.0, 1.0, size=(4, 2), entropy=number, levy_area_approximation="space-time")
    loss = torchsde.sdeint(sde, torch.ones(4, 2), times, bm=bm, dt=0.25).square().mean()
    loss.backward()
    optimizer.step()
    common.said("loss", loss)
common.weights(sde)
