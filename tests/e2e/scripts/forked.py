"""Processes that the main process forks, after torch was imported and the model made. `ranks`: of a process group, as
Lightning's ddp_fork and accelerate's notebook_launcher make them; `shared`: without one, on a model in shared memory;
`spawned`: spawned ones, each of which starts the agent; `pool`: spawned ones that say nothing, and import a script that makes an
optimizer; `forkserver`: such ones that a fork server forks, which has imported the script; `worker`, `spawned_worker`: a
DataLoader's worker, whose dataset trains a model of its own. `after`, `ranks_after`: like `shared` and `ranks`, and the main process
has trained before. `returns`: a child that a
thread forks, and that ends with the thread's function. `terminated`: the main process ends them when they have trained, as a pool
that is left by `with`; `exited`: ranks that end with status 1 when they have trained, as the actors of Ray Train. Both programs end
well."""

import multiprocessing
import os
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20  # two epochs
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
# Its workers are forked before anything trains.
batches = torch.utils.data.DataLoader(torch.arange(320.0).reshape(40, 8) / 320, batch_size=4, num_workers=1)


def train(model: nn.Module, batches: list[torch.Tensor], optimizer_class: type = torch.optim.SGD) -> float:
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


# In each spawned process, too, which does not train with it.
unused = torch.optim.SGD(model.parameters(), lr=0.01)


def rank(number: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    loss = train(DistributedDataParallel(model), [*batches, *batches])
    # In one call: ranks share a file, and print writes a line in pieces where output is not buffered.
    print(f"{number} {loss!r}\n", end="", flush=True)
    dist.destroy_process_group()


def shares(number: int, store: str) -> None:
    train(model, [*batches, *batches])


def shares_otherwise(number: int, store: str) -> None:
    train(model, [*batches, *batches], torch.optim.RMSprop)


def starts(number: int, store: str) -> None:
    import probe_agent

    probe_agent.start()
    shares(number, store)


def trains_until_ended(number: int, store: str) -> None:
    shares(number, store)
    open(f"{store}.{number}", "x").close()
    time.sleep(600)


def exits(number: int, store: str) -> None:
    rank(number, store)
    os._exit(1)


class Trains(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, item: int) -> float:
        return train(nn.Linear(8, 1), [torch.ones(4, 8)] * STEPS)


def returns() -> None:
    child = os.fork()
    if child == 0:
        train(model, [torch.ones(4, 8)] * STEPS)
    else:
        os.waitpid(child, 0)


def main(how: str) -> int:
    if how == "returns":
        thread = threading.Thread(target=returns)
        thread.start()
        thread.join()
        return 0
    if "worker" in how:
        context = "fork" if how == "worker" else "spawn"
        return len([*torch.utils.data.DataLoader(Trains(), num_workers=1, multiprocessing_context=context)]) - 2
    if how in ("after", "ranks_after"):
        train(model, [*batches, *batches])
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        method = {"spawned": "spawn", "pool": "spawn", "forkserver": "forkserver"}.get(how, "fork")
        context = multiprocessing.get_context(method)
        works = {"after": shares_otherwise, "spawned": starts, "terminated": trains_until_ended, "exited": exits}
        work = rank if how.startswith("ranks") else works.get(how, shares)
        processes = [context.Process(target=work, args=(number, store)) for number in range(2)]
        for process in processes:
            process.start()
        if how == "terminated":
            while not all(os.path.exists(f"{store}.{number}") for number in range(2)):
                time.sleep(0.01)
            for process in processes:
                process.terminate()
        for process in processes:
            process.join()
    if how in ("terminated", "exited"):
        return 0
    return max(process.exitcode for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
