"""Networks that people train, small ones, each with the batches that it takes and its loss.

A batch is made of numbers that are there before training begins, so that making it takes next to nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import nn

F = nn.functional
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass
class Task:
    """A network, `samples` to train it with (inputs and targets), and the loss of what it says of them."""

    net: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy

    def batch(self, step: int, size: int) -> Batch:
        begin = step * size % (len(self.inputs) - size + 1)
        return self.inputs[begin : begin + size], self.targets[begin : begin + size]


def _classes(net: nn.Module, *shape: int, classes: int = 10, count: int = 1024) -> Task:
    return Task(net, torch.randn(count, *shape), torch.randint(0, classes, (count,)))


def mlp(width: int = 512, layers: int = 3) -> Task:
    sizes = [256, *[width] * layers]
    hidden = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.1))]
    return _classes(nn.Sequential(*hidden, nn.Linear(width, 10)), 256)


def tiny() -> Task:
    return _classes(nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2)), 20, classes=2)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def resnet() -> Task:
    body = [Residual(16), Residual(16), nn.Conv2d(16, 32, 3, stride=2, padding=1), Residual(32), Residual(32)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return _classes(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *body, *head), 3, 24, 24, count=512)


class UNet(nn.Module):
    """Down, up, and a connection across."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        across = F.relu(self.down1(x))
        x = F.relu(self.up(F.relu(self.middle(F.relu(self.down2(across))))))
        return self.out(torch.cat([x, across], 1))


def unet() -> Task:
    x = torch.randn(512, 1, 32, 32)
    return Task(UNet(), x, (x > 0).float(), F.binary_cross_entropy_with_logits)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body, self.head = kind(32, 64, num_layers=2, batch_first=True), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[0][:, -1])


def gru() -> Task:
    return _classes(Recurrent(nn.GRU), 24, 32, classes=5)


def lstm() -> Task:
    return _classes(Recurrent(nn.LSTM), 24, 32, classes=5)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 512, width: int = 96, layers: int = 3, length: int = 256) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_token(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(0, 1))


def gpt(length: int = 32) -> Task:
    ids = torch.randint(0, 512, (512, length + 1))
    return Task(GPT(), ids[:, :-1], ids[:, 1:], next_token)


def vit() -> Task:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
    patches = nn.Sequential(nn.Conv2d(3, 64, 8, stride=8), nn.Flatten(2))
    net = nn.Sequential(patches, Turn(), nn.TransformerEncoder(layer, 3), Mean(), nn.Linear(64, 10))
    return _classes(net, 3, 32, 32, count=512)


class Turn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 32))
        self.decoder = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(spread / 2))


def vae() -> Task:
    x = torch.randn(1024, 256)
    return Task(VAE(), x, x, F.mse_loss)


class Graph(nn.Module):
    """Messages along the edges of one graph, added up at their ends."""

    def __init__(self, nodes: int, edges: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)
        self.register_buffer("source", torch.randint(0, nodes, (edges,)))
        self.register_buffer("target", torch.randint(0, nodes, (edges,)))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, self.target, x[self.source])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.gather(F.relu(self.first(self.gather(x)))))


def graph() -> Task:
    """One graph of 1024 nodes: each batch is the whole of it."""
    return _classes(Graph(1024, 8192), 32, classes=8)


class TwoTowers(nn.Module):
    """Users and items by their embeddings: large tables of which a batch touches little."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20_000, 32), nn.EmbeddingBag(5_000, 32, mode="mean")
        self.join = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.join(torch.cat([self.users(ids[:, 0]), self.items(ids[:, 1:] % 5_000)], 1)).squeeze(1)


def recommender() -> Task:
    ids = torch.randint(0, 20_000, (4096, 11))
    return Task(TwoTowers(), ids, (ids[:, 0] % 2).float(), F.binary_cross_entropy_with_logits)


class Experts(nn.Module):
    """A mixture of experts, each of which gets as many tokens as the router sends it."""

    def __init__(self, width: int = 64, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        expert = lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))  # noqa: E731
        self.experts = nn.ModuleList(expert() for _ in range(count))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return self.head(x + out)


def experts() -> Task:
    return _classes(Experts(), 64)


class Denoiser(nn.Module):
    """Says which noise was added, for a time that is embedded by sines."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(128 + 32, width), nn.Linear(width, 128)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x)
        time = torch.rand(len(x), 1)
        turns = time * torch.exp(torch.arange(16) * (-math.log(1000) / 16)) * 1000
        x = self.into(torch.cat([x * (1 - time) + noise * time, turns.sin(), turns.cos()], 1))
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return self.out(x) - noise


def diffusion() -> Task:
    x = torch.randn(1024, 128)
    return Task(Denoiser(), x, torch.zeros_like(x), F.mse_loss)


def audio() -> Task:
    """Convolutions over a waveform, further and further apart."""
    layers: list[nn.Module] = [nn.Conv1d(1, 16, 9, padding=4), nn.ReLU()]
    for apart in (1, 2, 4, 8):
        layers += [nn.Conv1d(16, 16, 3, padding=apart, dilation=apart), nn.BatchNorm1d(16), nn.ReLU()]
    return _classes(
        nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 10)), 1, 1024, count=512
    )


class Pairs(nn.Module):
    """Two views of each sample through one encoder, which have to find each other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = (F.normalize(self.encoder(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        return one @ other.t() / 0.1


def contrastive() -> Task:
    x = torch.randn(1024, 128)
    return Task(Pairs(), x, torch.zeros(1024), lambda scores, _: F.cross_entropy(scores, torch.arange(len(scores))))


def linear() -> Task:
    """A regression: there is nothing smaller."""
    return Task(nn.Linear(64, 1), torch.randn(4096, 64), torch.randn(4096, 1), F.mse_loss)
