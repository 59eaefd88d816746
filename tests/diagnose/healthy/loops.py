"""Ways to train with one process and one network, as people write them. Each takes a task, how many steps and how large a
batch."""

from __future__ import annotations

import copy
import pathlib
import tempfile
import time
from collections.abc import Iterator

import torch
from networks import Batch, Task
from torch import nn

F = nn.functional


def adam(task: Task, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW((p for p in task.net.parameters() if p.requires_grad), lr=rate)


def learn(task: Task, optimizer: torch.optim.Optimizer, batch: Batch) -> torch.Tensor:
    optimizer.zero_grad()
    loss = task.loss(task.net(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def batches(task: Task, steps: int, size: int) -> Iterator[Batch]:
    return (task.batch(step, size) for step in range(steps))


def plain(task: Task, steps: int, size: int) -> None:
    optimizer = adam(task)
    for batch in batches(task, steps, size):
        learn(task, optimizer, batch)


def momentum(task: Task, steps: int, size: int) -> None:
    """SGD, and the loss of every step kept as a number."""
    optimizer = torch.optim.SGD(task.net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    losses = [learn(task, optimizer, batch).item() for batch in batches(task, steps, size)]
    print(sum(losses) / len(losses))


def logged(task: Task, steps: int, size: int, every: int = 10) -> None:
    optimizer = adam(task)
    for step, batch in enumerate(batches(task, steps, size)):
        loss = learn(task, optimizer, batch)
        if step % every == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def bar(task: Task, steps: int, size: int) -> None:
    """A progress bar with the loss of every step."""
    from tqdm import tqdm

    optimizer = adam(task)
    with tqdm(total=steps) as shown:
        for batch in batches(task, steps, size):
            shown.set_postfix(loss=learn(task, optimizer, batch).item())
            shown.update()


def accumulated(task: Task, steps: int, size: int, micro_steps: int = 4) -> None:
    optimizer = adam(task)
    for step in range(steps):
        for micro in range(micro_steps):
            x, y = task.batch(step * micro_steps + micro, size)
            (task.loss(task.net(x), y) / micro_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def autocast(task: Task, steps: int, size: int) -> None:
    optimizer = adam(task)
    for x, y in batches(task, steps, size):
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.loss(task.net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scheduled(task: Task, steps: int, size: int) -> None:
    """A rate that warms up and then falls, gradients of a limited norm."""
    optimizer = adam(task)
    begin = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=steps // 10)
    then = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - steps // 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [begin, then], [steps // 10])
    for x, y in batches(task, steps, size):
        optimizer.zero_grad()
        task.loss(task.net(x), y).backward()
        nn.utils.clip_grad_norm_(task.net.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def averaged(task: Task, steps: int, size: int) -> None:
    """An average of the weights over time, updated in every step."""
    optimizer, mean = adam(task), torch.optim.swa_utils.AveragedModel(task.net)
    for batch in batches(task, steps, size):
        learn(task, optimizer, batch)
        mean.update_parameters(task.net)


def validated(task: Task, steps: int, size: int, every: int = 60, held: int = 5) -> None:
    """A few held-back batches after each sixty steps."""
    optimizer = adam(task)
    for step, batch in enumerate(batches(task, steps, size)):
        learn(task, optimizer, batch)
        if step % every == every - 1:
            task.net.eval()
            with torch.no_grad():
                losses = [task.loss(task.net(x), y).item() for x, y in batches(task, held, size)]
            task.net.train()
            print(f"step {step}: validation loss {sum(losses) / held:.4f}")


def saved(task: Task, steps: int, size: int, every: int = 100) -> None:
    """Weights and the optimizer's state, now and then."""
    optimizer = adam(task)
    with tempfile.TemporaryDirectory() as directory:
        for step, batch in enumerate(batches(task, steps, size)):
            learn(task, optimizer, batch)
            if step % every == every - 1:
                state = {"net": task.net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, pathlib.Path(directory) / "last.pt")


def frozen(task: Task, steps: int, size: int) -> None:
    """Only the last layer learns."""
    for parameter in list(task.net.parameters())[:-2]:
        parameter.requires_grad_(False)
    plain(task, steps, size)


def distilled(task: Task, steps: int, size: int) -> None:
    """A teacher, which does not learn, says what to aim at."""
    teacher, optimizer = copy.deepcopy(task.net).eval(), adam(task)
    for x, _ in batches(task, steps, size):
        with torch.no_grad():
            aim = teacher(x).softmax(-1)
        learn(task, optimizer, (x, aim))


def lbfgs(task: Task, steps: int, size: int) -> None:
    optimizer = torch.optim.LBFGS(task.net.parameters(), lr=0.1, max_iter=4)
    for x, y in batches(task, steps, size):

        def again(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = task.loss(task.net(x), y)
            loss.backward()
            return loss

        optimizer.step(again)


def compiled(task: Task, steps: int, size: int) -> None:
    """Compiled once, for one size of batch."""
    task.net = torch.compile(task.net)
    plain(task, steps, size)


def lengths(task: Task, steps: int, size: int) -> None:
    """Sequences that are as long as they happen to be."""
    optimizer, generator = adam(task), torch.Generator().manual_seed(0)
    whole = task.inputs.shape[1]
    for x, y in batches(task, steps, size):
        length = int(torch.randint(whole // 4, whole + 1, (1,), generator=generator))
        learn(task, optimizer, (x[:, :length], y[:, :length]))


def curriculum(task: Task, steps: int, size: int) -> None:
    """Short sequences first, longer and longer ones later."""
    optimizer, whole = adam(task), task.inputs.shape[1]
    for step, (x, y) in enumerate(batches(task, steps, size)):
        length = whole // 4 + (whole - whole // 4) * step // steps
        learn(task, optimizer, (x[:, :length], y[:, :length]))


def sizes(task: Task, steps: int, size: int) -> None:
    """The last batch of each epoch is smaller."""
    optimizer = adam(task)
    for step, (x, y) in enumerate(batches(task, steps, size)):
        rows = size // 3 if step % 16 == 15 else size
        learn(task, optimizer, (x[:rows], y[:rows]))


def sharpness(task: Task, steps: int, size: int) -> None:
    """Two passes a step: the second where the loss would be worst nearby."""
    optimizer, parameters = adam(task), list(task.net.parameters())
    for x, y in batches(task, steps, size):
        task.loss(task.net(x), y).backward()
        with torch.no_grad():
            away = [0.01 * p.grad / (p.grad.norm() + 1e-8) for p in parameters]
            for parameter, by in zip(parameters, away):
                parameter += by
        optimizer.zero_grad()
        task.loss(task.net(x), y).backward()
        with torch.no_grad():
            for parameter, by in zip(parameters, away):
                parameter -= by
        optimizer.step()
        optimizer.zero_grad()


def infer(task: Task, steps: int, size: int) -> None:
    """Nothing learns: a network is asked for all its samples."""
    task.net.eval()
    with torch.inference_mode():
        for x, _ in batches(task, steps, size):
            task.net(x)


def serve(task: Task, steps: int, size: int) -> None:
    """A server that waits for requests, which come when they come."""
    task.net.eval()
    generator = torch.Generator().manual_seed(0)
    for x, _ in batches(task, steps, size):
        time.sleep(0.03 * float(torch.rand(1, generator=generator)))
        with torch.inference_mode():
            task.net(x).argmax(-1).tolist()
