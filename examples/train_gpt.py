"""A small GPT trained on real text that every machine has: the sources of Python's standard library.

    probe run --name gpt -- python examples/train_gpt.py
    probe run --name gpt -- torchrun --nproc-per-node 2 examples/train_gpt.py

Ask of it, from another terminal:
    probe gpt query "SELECT module, stage, SUM(duration) AS s FROM python.torch_trace GROUP BY 1, 2 ORDER BY s DESC LIMIT 10"
    probe gpt eval "print(train_loader.num_workers, model.config)"
"""

import argparse
import hashlib
import os
import pathlib
import sysconfig
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler


@dataclass
class Config:
    vocab_size: int = 256  # bytes
    max_position_embeddings: int = 64
    hidden_size: int = 128
    num_attention_heads: int = 4
    num_layers: int = 4


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, hidden))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class StandardLibrary(Dataset):
    """Windows of length + 1 bytes over the standard library's sources, shifted by one for the targets."""

    def __init__(self, length: int, megabytes: float = 2.0) -> None:
        text = bytearray()
        for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            text += path.read_bytes()
            if len(text) > megabytes * 1e6:
                break
        self.text = torch.frombuffer(text, dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index * self.length : (index + 1) * self.length + 1].long()
        return window[:-1], window[1:]


class Trainer:
    """One step at a time. The batches are an iterator, not a generator, so that a step may be taken at any time
    between two others: a generator that waits for its next batch cannot be asked again."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, train_loader: DataLoader) -> None:
        self.model = model
        self.optimizer = optimizer
        self.train_loader = train_loader
        self.batches = iter(train_loader)
        self.device = next(model.parameters()).device

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.train_loader)
            return next(self.batches)

    def train_step(self) -> torch.Tensor:
        ids, targets = (part.to(self.device) for part in self.next_batch())
        loss = self.model(ids, targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of rest after each step")
    args = parser.parse_args()

    distributed = "RANK" in os.environ
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    if distributed:
        # NCCL wants a GPU for each rank.
        dist.init_process_group("nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)) else "gloo")
    rank = dist.get_rank() if distributed else 0

    torch.manual_seed(args.seed)
    batch_size = args.batch_size
    config = Config()
    dataset = StandardLibrary(config.max_position_embeddings)
    sampler = DistributedSampler(dataset) if distributed else RandomSampler(dataset)
    train_loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)
    model = GPT(config).to(device)
    replica = nn.parallel.DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    trainer = Trainer(replica, optimizer, train_loader)

    began = time.perf_counter()
    for step in range(args.steps):
        loss = trainer.train_step()
        if rank == 0 and step % args.log_every == 0:
            print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - began:.1f} s", flush=True)
        if args.pause:
            time.sleep(args.pause)

    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(f"rank {rank}: {args.steps} steps, loss {loss.item():.6f}, parameters {digest.hexdigest()[:16]}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
