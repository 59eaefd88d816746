"""`train_gpt.py` with a planted cause that makes it slow: to practise on, and for docs/guides/slow-run.md.

    probe run --name slow -- python examples/slow_gpt.py layer
    probe run --name slow -- python examples/slow_gpt.py data
    probe run --name slow -- python examples/slow_gpt.py saves
    probe run --name slow -- torchrun --nproc-per-node 2 examples/slow_gpt.py rank

Options after the cause are those of `train_gpt.py`. The cause `none` is the same program without one.
"""

import os
import pathlib
import sys
import tempfile

import torch
import train_gpt
from train_gpt import GPT, MLP, Config, StandardLibrary, Trainer


class WatchedMLP(MLP):
    """An MLP that computes the largest singular values of its weights in each call, since somebody wanted to look at them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = [torch.linalg.svdvals(layer.weight.detach())[0] for layer in (self.up, self.down)]
        return super().forward(x)


class SlowLayer(GPT):
    """One layer of four takes longer than the others."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers[2].mlp = WatchedMLP(config)


class SlowRank(GPT):
    """Rank 1 does the work of its last layer three more times."""

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if os.environ.get("RANK") == "1":
            x = self.tokens(ids)
            for _ in range(3):
                self.layers[-1](x)
        return super().forward(ids, targets)


class SlowData(StandardLibrary):
    """One byte in ten is masked, in a loop of Python over the bytes."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, targets = super().__getitem__(index)
        return torch.stack([one if torch.rand(1) >= 0.1 else torch.tensor(0) for one in ids]), targets


class SavingTrainer(Trainer):
    """Training stands still for a checkpoint in every 10th step."""

    steps = 0

    def train_step(self) -> torch.Tensor:
        loss = super().train_step()
        self.steps += 1
        if self.steps % 10 == 0:
            with tempfile.TemporaryDirectory() as directory:
                state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save(state, pathlib.Path(directory) / "latest.pt")
        return loss


CAUSES = {
    "none": {},
    "layer": {"GPT": SlowLayer},
    "rank": {"GPT": SlowRank},
    "data": {"StandardLibrary": SlowData},
    "saves": {"Trainer": SavingTrainer},
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CAUSES:
        sys.exit(f"usage: python examples/slow_gpt.py {'|'.join(CAUSES)} [OPTIONS of train_gpt.py]")
    for name, replacement in CAUSES[sys.argv.pop(1)].items():
        setattr(train_gpt, name, replacement)
    train_gpt.main()
