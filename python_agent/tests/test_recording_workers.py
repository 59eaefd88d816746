"""The worker that loaded a batch, and how long it took: never another's, and the workers are what they were."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recording_support import Recorder, Row, in_process
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

torch.set_num_threads(1)

PATIENCE = 120.0
WORKERS = 3


def _worker() -> int:
    info = get_worker_info()
    assert info is not None
    return int(info.id)


def _item(index: int) -> list[float]:
    """The worker, when it began, and the item."""
    began = time.monotonic()
    time.sleep(0.02 if index % 8 == 1 else 0.001)
    return [_worker(), began, index]


def _collate(items: list[list[float]]) -> torch.Tensor:
    """The worker, the seconds since it began with the batch, and the first item."""
    time.sleep(0.005)
    return torch.tensor([items[0][0], time.monotonic() - items[0][1], items[0][2]], dtype=torch.float64)


class Items(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> list[float]:
        return _item(index)


class Shards(IterableDataset):  # type: ignore[type-arg]
    """The first worker's shard is short, the last one has nothing."""

    def __iter__(self) -> Iterator[list[float]]:
        for index in range((4, 12, 0)[_worker()]):
            yield _item(index)


def loaded(kind: str, options: dict[str, Any]) -> list[list[Any]]:
    """Three epochs, the second of which is left early: what each batch says of itself, and its row."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    data = {"items": Items, "shards": Shards}[kind]()
    options = {"timeout": PATIENCE, **options}
    loader = DataLoader(data, batch_size=2, num_workers=WORKERS, collate_fn=_collate, **options)
    found = []
    for epoch in range(3):
        batches = []
        for batch in loader:
            batches.append(batch.tolist())
            if epoch == 1 and len(batches) == 3:
                break
        rows = recorder.take()["python.data_trace"]
        assert [row["batch_index"] for row in rows] == list(range(len(batches)))
        found += [[batch, [row["worker"], row["fetch_time"]]] for batch, row in zip(batches, rows)]
    return found


@pytest.mark.parametrize("kind", ["items", "shards"])
@pytest.mark.parametrize(
    "options",
    [{}, {"persistent_workers": True}, {"in_order": False}, {"in_order": False, "persistent_workers": True}],
    ids=["plain", "persistent", "any-order", "any-order-persistent"],
)
def test_a_batch_has_the_worker_and_the_time_that_loaded_it(kind: str, options: dict[str, Any]) -> None:
    if "in_order" in options and not hasattr(DataLoader([0]), "in_order"):
        pytest.skip("this torch hands batches over in order")
    found = in_process(loaded, arguments=(kind, {"multiprocessing_context": "fork", **options}))
    assert len(found) == {"items": 12 + 3 + 12, "shards": 8 + 3 + 8}[kind]
    # A batch that was asked for only after another worker had come to its end is not in the list of tasks before.
    known = [(batch, row) for batch, row in found if row[0] is not None]
    assert len(known) == len(found) if kind == "items" else len(known) >= len(found) - 6
    assert [row[0] for _, row in known] == [batch[0] for batch, _ in known]
    # All of the dataset's and collate_fn's time, and what torch does around them: mostly some microseconds.
    beyond = [row[1] - batch[1] for batch, row in known]
    assert min(beyond) >= 0 and statistics.median(beyond) < 0.005, beyond


def test_workers_that_are_not_forked_say_only_who_they_are() -> None:
    found = in_process(loaded, arguments=("items", {"multiprocessing_context": "spawn", "persistent_workers": True}))
    assert [row for _, row in found] == [[batch[0], None] for batch, _ in found]


class Breaks(Items):
    """An item that cannot be read, of the second worker's first batch, and one that ends its worker."""

    def __init__(self, broken: int = -1, deadly: int = -1) -> None:
        self.broken, self.deadly = broken, deadly

    def __getitem__(self, index: int) -> list[float]:
        if index == self.broken:
            raise KeyError("no such item")
        if index == self.deadly:
            os._exit(3)
        return super().__getitem__(index)


def _fork(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        data, batch_size=2, num_workers=WORKERS, collate_fn=_collate, multiprocessing_context="fork", timeout=PATIENCE,
        **options,
    )  # fmt: skip


def _descriptors() -> list[str]:
    """What is open, but for the file of our rings."""
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    files = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(file for file in files if "probe-rings" not in file)


def _agree(batches: list[Any], rows: list[Row]) -> None:
    assert [row["worker"] for row in rows] == [batch[0] for batch in batches]
    assert all(row["fetch_time"] >= batch[1] for batch, row in zip(batches, rows))


def after_errors() -> dict[str, Any]:
    """Loaders whose batches fail or whose workers die, and one after them; what the loop sees of them."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    batches, iterator = [], iter(_fork(Breaks(broken=2)))
    with pytest.raises(KeyError) as error:
        while True:
            batches.append(next(iterator).tolist())
    # A loop may go on behind such a batch.
    batches += [batch.tolist() for batch in iterator]
    assert len(batches) == 11
    _agree(batches, recorder.take()["python.data_trace"])
    del iterator
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(_fork(Breaks(deadly=8)))
    recorder.take()
    batches = [batch.tolist() for batch in _fork(Items())]
    _agree(batches, recorder.take()["python.data_trace"])
    return {"error": str(error.value)}


def test_rows_are_right_after_batches_that_fail_and_workers_that_die() -> None:
    found = in_process(after_errors)
    # The text has the worker's traceback, in which there is no frame of ours.
    assert "no such item" in found["error"] and "probe_agent" not in found["error"]
    assert found["error"].count("\n  File ") == 4


def files_after_a_loader() -> None:
    """Waits until nothing is open that was not open before. Torch and multiprocessing close theirs some time later."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    before = _descriptors()
    batches = [batch.tolist() for batch in _fork(Items())]
    _agree(batches, recorder.take()["python.data_trace"])
    deadline = time.monotonic() + PATIENCE
    while _descriptors() != before:
        assert time.monotonic() < deadline, (before, _descriptors())
        time.sleep(0.01)


def test_no_file_is_open_when_a_loader_is_gone() -> None:
    in_process(files_after_a_loader)


def of_others() -> None:
    """Iterators and queues that are not torch's own, and a table without our function in workers."""
    import probe_agent.torch as agent
    from probe_agent.torch import data

    agent.install()
    recorder = Recorder()

    class Pairs(_MultiProcessingDataLoaderIter):
        def _next_data(self) -> Any:
            return [super()._next_data(), super()._next_data()]  # type: ignore[misc]

    class Own(DataLoader):  # type: ignore[type-arg]
        def _get_iterator(self) -> Any:
            return Pairs(self)

    assert len(list(Own(Items(), batch_size=2, num_workers=2, multiprocessing_context="fork"))) == 6
    rows = recorder.take()["python.data_trace"]
    assert [(row["num_workers"], row["worker"], row["fetch_time"]) for row in rows] == [(2, None, None)] * 6
    # A class made from DataLoader has torch's iterators.
    batches = [batch.tolist() for batch in type("Named", (DataLoader,), {})(
        Items(), batch_size=2, num_workers=2, collate_fn=_collate, multiprocessing_context="fork"
    )]  # fmt: skip
    _agree(batches, recorder.take()["python.data_trace"])
    # The agent is taken out: workers that begin from now on note nothing, and it is put in again.
    agent.uninstall()
    iterator = iter(_fork(Items()))
    agent.install()
    assert data._forks is not None
    batches = [batch.tolist() for batch in iterator]
    rows = recorder.take()["python.data_trace"]
    assert [(row["worker"], row["fetch_time"]) for row in rows] == [(batch[0], None) for batch in batches]


def test_what_is_not_torchs_own_or_not_watched_is_null() -> None:
    in_process(of_others)


def test_more_tasks_than_are_looked_at(recorder: Recorder) -> None:
    loader = DataLoader(Items(), num_workers=2, prefetch_factor=40, collate_fn=_collate, multiprocessing_context="fork")
    batches = [batch.tolist() for batch in loader]
    _agree(batches, recorder.take()["python.data_trace"])


#: A program that prints all that its loaders give it: items of random numbers, seeds, errors with their tracebacks, the way in
#: which workers end.
PROGRAM = """
import gc, os, random, sys, traceback
import torch
if os.environ.get("WITH_AGENT"):
    import probe_agent.torch
    probe_agent.torch.install()
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

def begin(worker):
    print("begins", worker, torch.initial_seed(), flush=True)

class Noise(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if index == 11:
            raise ValueError(f"item {index} in {get_worker_info().id} of {get_worker_info().num_workers}")
        return torch.rand(2), random.random(), index

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(3 + get_worker_info().id):
            yield torch.rand(2), index

def main():
    torch.manual_seed(5)
    method = sys.argv[1]
    for options in ({}, {"persistent_workers": True}):
        options.update(multiprocessing_context=method, worker_init_fn=begin)
        loader = DataLoader(Noise(), 2, shuffle=True, num_workers=1, **options)
        for _ in range(2):
            try:
                for batch in loader:
                    print(batch)
            except ValueError:
                traceback.print_exc(file=sys.stdout)
            # The error's traceback holds the iterator, which a worker that is forked later would end in its own way.
            gc.collect()
            print(flush=True)
    for batch in DataLoader(Stream(), 2, num_workers=2, multiprocessing_context=method):
        print(batch, flush=True)
    iterator = iter(DataLoader(Noise(), 2, num_workers=2, multiprocessing_context=method))
    print(next(iterator))
    workers = iterator._workers
    del iterator
    print([worker.exitcode for worker in workers])

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.extended)])
def test_a_program_has_the_same_batches_with_and_without_the_agent(method: str, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def said(**more: str) -> tuple[int, str, str]:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PROBE": "0", **more}
        command = [sys.executable, str(program), method]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    plain = said()
    assert plain[0] == 0 and plain[1].count("tensor") > 20, plain
    recorded = said(WITH_AGENT="1")
    # Our own frame is in the training process's traceback, which was always so.
    ours = ("probe_agent", "next_batch(original", "^^^")

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if not any(part in line for part in ours)]

    assert (recorded[0], lines(recorded[1]), recorded[2]) == (plain[0], lines(plain[1]), plain[2])
