"""Lightning's demonstration Transformer in a loop of Fabric's, in bfloat16."""

import common
import lightning
import torch
from lightning.pytorch.demos import Transformer

common.begin()
fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
model = Transformer(vocab_size=32, ninp=16, nhead=2, nhid=16, nlayers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = fabric.setup(model, optimizer)
tokens = torch.randint(32, (16, 9))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(tokens, batch_size=4))
for _ in range(2):
    for batch in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.nll_loss(model(batch[:, :-1], batch[:, 1:]).float(), batch[:, 1:].reshape(-1))
        fabric.backward(loss)
        optimizer.step()
        common.said("loss", loss)
common.weights(model)
