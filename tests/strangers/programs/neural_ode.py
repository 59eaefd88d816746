import common
import torch
from torch import nn
from torchdiffeq import odeint_adjoint

common.begin()


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, t, y):
        return self.net(y**3)


field = Field()
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
for _ in range(5):
    optimizer.zero_grad()
    path = odeint_adjoint(field, torch.randn(4, 2), torch.linspace(0, 1, 4), method="rk4")
    loss = path.abs().mean()
    loss.backward()
    optimizer.step()
    common.said("loss", loss)
common.weights(field)
