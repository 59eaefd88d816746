"""Training on a GPU that ends badly, or not at all: `cuda_ends.py assert|memory|stuck`, after 20 good steps."""

import sys

import torch
from torch import nn

#: Longer than any test waits; the processor's cycles that a kernel spins for.
FOR_EVER = 10**13


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 64), nn.Linear(64, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(ids).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def main() -> None:
    model = Classifier().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(0, 100, (256,), device="cuda")
    for _ in range(20):
        loss = step(model, optimizer, ids)
    print(loss.item(), flush=True)
    how = sys.argv[1]
    if how == "assert":
        step(model, optimizer, ids + 1000)
        torch.cuda.synchronize()
    elif how == "memory":
        kept = torch.empty(2**28, device="cuda")  # 1 GiB, which the account is to name
        step(model, optimizer, torch.zeros(2**40, dtype=torch.uint8, device="cuda").long() + kept.long())
    elif how == "stuck":
        torch.cuda._sleep(FOR_EVER)
        step(model, optimizer, ids).item()


if __name__ == "__main__":
    main()
