"""Training with several ranks, whose work is the same."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from loops import adam, learn
from networks import Task
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def join() -> int:
    dist.init_process_group("gloo")
    return int(os.environ["RANK"])


def data_parallel(task: Task, steps: int, size: int, **options: object) -> None:
    rank, world = join(), dist.get_world_size()
    task.net = DistributedDataParallel(task.net, **options)
    optimizer = adam(task)
    for step in range(steps):
        loss = learn(task, optimizer, task.batch(step * world + rank, size))
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def sampled(task: Task, steps: int, size: int) -> None:
    """Each rank draws its own part of the data in each epoch; the mean of the loss is asked for at its end."""
    rank = join()
    task.net = DistributedDataParallel(task.net)
    data, optimizer = TensorDataset(task.inputs, task.targets), adam(task)
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader, done, epoch = DataLoader(data, batch_size=size, sampler=sampler, drop_last=True), 0, 0
    while done < steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = learn(task, optimizer, batch).detach()
            done += 1
        dist.all_reduce(loss)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
        epoch += 1
    dist.destroy_process_group()


def micro_steps(task: Task, steps: int, size: int, count: int = 4) -> None:
    """Gradients are summed over micro steps, and reduced in the last one."""
    rank, world = join(), dist.get_world_size()
    net = DistributedDataParallel(task.net)
    optimizer = adam(task)
    for step in range(steps):
        for micro in range(count):
            x, y = task.batch((step * count + micro) * world + rank, size)
            net.require_backward_grad_sync = micro == count - 1
            (task.loss(net(x), y) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def saving_rank(task: Task, steps: int, size: int) -> None:
    """The first rank writes down the weights now and then, and the others wait for it there."""
    rank, world = join(), dist.get_world_size()
    task.net = DistributedDataParallel(task.net)
    optimizer = adam(task)
    for step in range(steps):
        learn(task, optimizer, task.batch(step * world + rank, size))
        if step % 100 == 99:
            if rank == 0:
                torch.save(task.net.module.state_dict(), os.devnull)
            dist.barrier()
    dist.destroy_process_group()


def sharded(task: Task, steps: int, size: int) -> None:
    """Parameters are spread over the ranks (FSDP)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world = join(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    for block in task.net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(task.net, mesh=mesh)
    optimizer = adam(task)
    for step in range(steps):
        learn(task, optimizer, task.batch(step * world + rank, size))
    dist.destroy_process_group()
