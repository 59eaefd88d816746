"""The training loops that the benchmarks run: a GPT (54 ms a step), a hundred tiny layers (3 ms), a ResNet-18."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.act, self.down = nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        self.drop = nn.Dropout(0.0)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, hidden)
        x = x + self.drop(self.proj(y))
        return x + self.down(self.act(self.up(self.ln_2(x))))


class GPT(nn.Module):
    """6 layers, hidden 256, vocabulary 1000: batch 1 x 32 tokens."""

    def __init__(self, vocab: int = 1000, hidden: int = 256, layers: int = 6, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, 4) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Residual(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(outputs), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = x if self.down is None else self.down(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + around)


def resnet18() -> nn.Module:
    """ResNet-18 with ten classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def make(kind: str):
    """A function that takes one step of `kind` ("gpt", "tiny", "resnet", "ddp"), single-threaded."""
    return make_model(kind)[1]


def make_model(kind: str):
    """The model and a function that takes one step of it. "ddp" is the tiny layers on the ranks of the default process group."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kind == "gpt":
        model: nn.Module = GPT()
        ids = torch.randint(0, 1000, (1, 32))
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def loss_of() -> torch.Tensor:
            return F.cross_entropy(model(ids).view(-1, 1000), ids.view(-1))
    elif kind == "resnet":
        model = resnet18()
        pictures, classes = torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

        def loss_of() -> torch.Tensor:
            return F.cross_entropy(model(pictures), classes)
    else:
        model = nn.Sequential(*(part for _ in range(50) for part in (nn.Linear(16, 16), nn.ReLU())))
        if kind == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        x = torch.randn(8, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def loss_of() -> torch.Tensor:
            return model(x).sum()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()

    return model, step
