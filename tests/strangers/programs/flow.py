import common
import torch
import zuko

common.begin()
flow = zuko.flows.NSF(2, transforms=2, hidden_features=(8, 8))
optimizer = torch.optim.Adam(flow.parameters(), lr=0.01)
for _ in range(6):
    loss = -flow().log_prob(torch.randn(16, 2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    common.said("loss", loss)
common.weights(flow)
