"""Ways to get batches from a DataLoader, whose workers have enough time for them or which has nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy
import torch
from loops import adam, learn
from networks import Batch, Task
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler


class Noisy(Dataset):
    """Samples with a little augmentation."""

    def __init__(self, task: Task) -> None:
        self.inputs, self.targets = task.inputs, task.targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Batch:
        x = self.inputs[index]
        return (x.flip(-1) if index % 2 else x) + 0.01 * torch.randn_like(x), self.targets[index]


class Stream(IterableDataset):
    """Samples without an index, as they come from a file or a queue; each worker has its share."""

    def __init__(self, task: Task) -> None:
        self.inputs, self.targets = task.inputs, task.targets

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        begin, apart = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(begin, len(self.inputs), apart):
            yield self.inputs[index], self.targets[index]


class Mapped(Dataset):
    """Samples in a numpy array, as in a file that is mapped."""

    def __init__(self, task: Task) -> None:
        self.inputs, self.targets = task.inputs.numpy(), task.targets.numpy()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[numpy.ndarray, numpy.generic]:
        return self.inputs[index], self.targets[index]


class Whole(Dataset):
    """Whole batches, cut out of tensors at once."""

    def __init__(self, task: Task, size: int) -> None:
        self.task, self.size = task, size

    def __len__(self) -> int:
        return len(self.task.inputs) // self.size

    def __getitem__(self, index: int) -> Batch:
        return self.task.batch(index, self.size)


def padded(samples: list[Batch]) -> Batch:
    """Sequences of different lengths, filled up to the longest."""
    least = min(len(x) // 2 + int(y.flatten()[0]) % (len(x) // 2) + 1 for x, y in samples)
    return torch.stack([x[:least] for x, _ in samples]), torch.stack([y[:least] for _, y in samples])


def epochs(task: Task, loader: Iterable[Batch], steps: int) -> None:
    """Epoch after epoch, until there were so many steps."""
    optimizer, done = adam(task), 0
    while done < steps:
        for batch in loader:
            learn(task, optimizer, batch)
            done += 1
            if done == steps:
                return


def in_memory(task: Task, steps: int, size: int) -> None:
    """Tensors in memory, and no workers, as there is nothing for them to do."""
    epochs(task, DataLoader(TensorDataset(task.inputs, task.targets), batch_size=size, shuffle=True), steps)


def workers(task: Task, steps: int, size: int, count: int = 2, **more: object) -> None:
    loader = DataLoader(
        Noisy(task), batch_size=size, num_workers=count, persistent_workers=True, drop_last=True, **more
    )
    epochs(task, loader, steps)


def stream(task: Task, steps: int, size: int, count: int = 0) -> None:
    epochs(task, DataLoader(Stream(task), batch_size=size, num_workers=count, persistent_workers=count > 0), steps)


def mapped(task: Task, steps: int, size: int) -> None:
    loader = DataLoader(Mapped(task), batch_size=size, num_workers=1, persistent_workers=True, shuffle=True)
    epochs(task, loader, steps)


def whole(task: Task, steps: int, size: int) -> None:
    epochs(task, DataLoader(Whole(task, size), batch_size=None), steps)


def weighted(task: Task, steps: int, size: int) -> None:
    """Rare classes are drawn more often; one worker fetches."""
    sampler = WeightedRandomSampler(torch.rand(len(task.inputs)).tolist(), len(task.inputs))
    data = TensorDataset(task.inputs, task.targets)
    loader = DataLoader(data, batch_size=size, sampler=sampler, num_workers=1, persistent_workers=True)
    epochs(task, loader, steps)


def collated(task: Task, steps: int, size: int) -> None:
    data = TensorDataset(task.inputs, task.targets)
    loader = DataLoader(data, batch_size=size, num_workers=2, persistent_workers=True, collate_fn=padded, shuffle=True)
    epochs(task, loader, steps)
