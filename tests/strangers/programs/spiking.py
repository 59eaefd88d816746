import common
import snntorch
import torch
from torch import nn

common.begin()


class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.lif = nn.Linear(4, 8), snntorch.Leaky(beta=0.9)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        membrane, spikes = self.lif.init_leaky(), 0
        for _ in range(4):
            spike, membrane = self.lif(self.fc(x), membrane)
            spikes = spikes + self.out(spike)
        return spikes


model = Spiking()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
    loss.backward()
    optimizer.step()
    common.said("loss", loss)
common.weights(model)
