import common
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

common.begin()
pyro.set_rng_seed(0)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(pyro.distributions.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x, y):
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", pyro.distributions.Normal(mean, 0.1), obs=y)


x = torch.randn(16, 3)
model = Regression()
guide = AutoNormal(model)
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
for _ in range(8):
    common.said("loss", svi.step(x, x.sum(1)))
common.weights(guide)
