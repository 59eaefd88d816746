"""A training loop with a clock in its hands: prints, as JSON, what perf_counter says of every part of every step."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(nn.Module):
    """A layer planted to be found: the same product over and over."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = torch.tanh(x @ self.weight)
        return x


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))
        self.planted = Slow(width, 12)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.planted(x)), y)


class Data(Dataset):
    """Items that take a moment to make, so that waiting for data can be measured."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(256, generator=generator)
        for _ in range(3):
            x = torch.sin(x)
        return x, index % 10


class PassClock:
    """When the first autograd node of a loss began, and when the last one of a model's first layer ended."""

    def __init__(self, model: Net) -> None:
        self.begin = self.end = 0.0
        for parameter in model.layers[0].parameters():
            parameter.register_post_accumulate_grad_hook(self._ended)

    def began(self, _gradient: torch.Tensor) -> None:
        self.begin = time.perf_counter()

    def _ended(self, _parameter: torch.Tensor) -> None:
        self.end = time.perf_counter()


def main() -> None:
    steps = int(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    backward = PassClock(model)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(Data(), batch_size=128))
    clock = time.perf_counter
    parts = []
    for _ in range(steps):
        t0 = clock()
        x, y = next(batches)
        t1 = clock()
        loss = model(x, y)
        t2 = clock()
        loss.register_hook(backward.began)
        loss.backward()
        t3 = clock()
        # Of one process the rest of the call frees the graph; of several it also waits for the last buckets.
        end = t3 if dist.is_initialized() else backward.end
        optimizer.step()
        t4 = clock()
        optimizer.zero_grad()
        took = end - backward.begin
        parts.append({"data": t1 - t0, "forward": t2 - t1, "backward": took, "optimizer": t4 - t3, "end": t4})
        # Freed here, because assigning the next ones would free these between two clocks.
        del x, y, loss
    # In one call: ranks share a file, and print would write a long line in pieces.
    line = "TIMED " + json.dumps({"rank": int(os.environ.get("RANK", 0)), "parts": parts}) + "\n"
    os.write(1, line.encode())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
