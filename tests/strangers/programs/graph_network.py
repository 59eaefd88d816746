import common
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, global_mean_pool

common.begin()
graphs = [Data(x=torch.randn(6, 4), edge_index=torch.randint(6, (2, 12)), y=torch.tensor([n % 2])) for n in range(16)]
model = GCN(4, 8, num_layers=2, out_channels=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(2):
    for batch in DataLoader(graphs, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        scores = global_mean_pool(model(batch.x, batch.edge_index), batch.batch)
        loss = torch.nn.functional.cross_entropy(scores, batch.y)
        loss.backward()
        optimizer.step()
        common.said("loss", loss)
common.weights(model)
