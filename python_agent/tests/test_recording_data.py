"""Batches have one row each, whatever loads them, and the loop notices nothing."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

torch.set_num_threads(1)


def epochs(workers: int, context: str | None, persistent: bool) -> dict[str, Any]:
    """Two epochs of three steps with a validation after each; the rows."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"multiprocessing_context": context, "persistent_workers": persistent} if workers else {}
    data = TensorDataset(torch.randn(24, 32), torch.zeros(24))
    loader = DataLoader(data, batch_size=8, num_workers=workers, **options)
    for _ in range(2):
        for x, _target in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    rows = recorder.take()
    return {
        "trace": rows["python.data_trace"],
        "steps": rows["python.steps"],
        "drops": [str(drop) for drop in rows["probe.drops"]],
        "problem": recorder.native.problem(),
    }


def the_method() -> list[Any]:
    """What a program sees of the method that gives batches."""
    import copy
    import pickle

    import probe_agent.torch as agent
    from torch.utils.data import dataloader

    before = dataloader._BaseDataLoaderIter.__next__
    agent.install()
    method = dataloader._BaseDataLoaderIter.__next__
    bound = iter(DataLoader(TensorDataset(torch.zeros(1)))).__next__
    names = [(each.__name__, each.__qualname__, each.__code__) == (before.__name__, before.__qualname__, before.__code__)
             for each in (method, bound)]  # fmt: skip
    return [method is not before, *names, pickle.loads(pickle.dumps(method)) is method, copy.deepcopy(method) is method]


def test_the_method_that_gives_batches_has_a_name_and_can_be_pickled() -> None:
    assert in_process(the_method) == [True] * 5


@pytest.mark.parametrize(
    ("workers", "context", "persistent"),
    [
        (0, None, False),
        (2, "fork", False),
        (1, "spawn", True),
        pytest.param(2, "fork", True, marks=pytest.mark.extended),
        pytest.param(1, "spawn", False, marks=pytest.mark.extended),
    ],
)
def test_a_row_a_batch(workers: int, context: str | None, persistent: bool) -> None:
    found = in_process(epochs, arguments=(workers, context, persistent))
    assert found["drops"] == [] and found["problem"] == ""
    trace, steps = found["trace"], found["steps"]
    assert [row["batch_index"] for row in trace] == [0, 1, 2] * 2
    first = steps[0]["step"]
    assert [row["step"] - first for row in trace] == [0, 1, 2, 3, 4, 5]
    for row, step in zip(trace, steps):
        assert row["dataset"] == "TensorDataset"
        assert (row["num_workers"], row["persistent_workers"], row["pinned"]) == (workers, persistent, False)
        assert (row["samples"], row["bytes"]) == (8, 8 * 32 * 4 + 8 * 4)
        # The wait is the step's data time; an epoch's last question, which gets no batch, is the next step's too.
        assert 0 < row["wait"] <= step["data_time"] * (1 + 1e-9)
        assert step["samples"] == 8
        if workers:
            assert row["prefetch_factor"] == 2
            assert 0 <= row["queue_depth"] <= 2 * workers
            assert 0 <= row["tasks_outstanding"] <= 2 * workers
        else:
            assert row["prefetch_factor"] is row["queue_depth"] is row["tasks_outstanding"] is None


def test_batches_of_all_shapes(recorder: Recorder) -> None:
    x = torch.zeros(4, 3)
    pair = collections.namedtuple("pair", "x y")
    batches: list[tuple[Any, Any, Any]] = [
        (x, 4, 48),
        ((x, x.double()), 4, 144),
        ([x, x], 4, 96),
        (pair(x, x), 4, 96),
        ({"input_ids": x.long(), "mask": x.bool()}, 4, 108),
        (collections.UserDict({"input_ids": x.long()}), 4, 96),
        ((x, "words"), 4, None),
        ((x, {"nested": x}), 4, None),
        ([x] * 65, 4, None),
        ([], None, None),
        (torch.tensor(1.0), None, 4),
        (x.to_sparse(), 4, None),
        (torch.nn.Parameter(x), 4, 48),
        ("words", None, None),
        (None, None, None),
        (3, None, None),
    ]
    loader = DataLoader(range(len(batches)), batch_size=None, collate_fn=lambda index: batches[index][0])  # type: ignore[arg-type]
    got = list(loader)
    assert all(a is b[0] for a, b in zip(got, batches))
    rows = recorder.take()["python.data_trace"]
    assert [(row["samples"], row["bytes"]) for row in rows] == [(samples, size) for _, samples, size in batches]
    assert {row["dataset"] for row in rows} == {"range"}


class Repeating:
    """A batch sampler that begins anew when it is at its end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


@pytest.mark.parametrize("repeats", [False, True])
def test_samples_where_tensors_have_different_first_dimensions(recorder: Recorder, repeats: bool) -> None:
    def boxes_and_images(indices: list[int]) -> dict[str, Any]:
        boxes = [torch.zeros(3 + index % 2, 4) for index in indices]
        images = torch.zeros(len(indices), 3, 8, 8)
        return {"boxes": torch.cat(boxes), "files": [str(index) for index in indices], "img": images}

    loader = DataLoader(range(14), batch_size=4, collate_fn=boxes_and_images)  # type: ignore[arg-type]
    if repeats:
        object.__setattr__(loader, "batch_sampler", Repeating(loader.batch_sampler))
    given = [len(batch["img"]) for batch in itertools.islice(loader, 4)]
    assert given == [4, 4, 4, 2]
    assert [row["samples"] for row in recorder.take()["python.data_trace"]] == given

    # A sequence first, whose length varies, beside a class of each sample.
    lengths = itertools.cycle([5, 4, 7])
    sequences = DataLoader(
        range(6),  # type: ignore[arg-type]
        batch_size=4,
        collate_fn=lambda indices: (torch.zeros(next(lengths), len(indices)), torch.zeros(len(indices))),
    )
    list(sequences)
    assert [row["samples"] for row in recorder.take()["python.data_trace"]] == [4, 2]
    # None has the loader's batch size, which says nothing of any of them.
    list(DataLoader(range(8), batch_size=4, collate_fn=lambda _: (torch.zeros(5), torch.zeros(6))))  # type: ignore[arg-type]
    assert [row["samples"] for row in recorder.take()["python.data_trace"]] == [None, None]


def test_samples_of_a_model_that_is_given_no_tensor(recorder: Recorder) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.inner(batch["x"])

    model = Wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader([{"x": torch.zeros(3)} for _ in range(8)], batch_size=2)  # type: ignore[arg-type]
    batches = iter(loader)
    for _ in range(2):
        for _ in range(2):
            model(next(batches)).sum().backward()
        optimizer.step()
    assert [step["samples"] for step in recorder.take()["python.steps"]] == [4, 4]


def test_samples_of_several_models_are_those_of_the_loop(recorder: Recorder) -> None:
    generator, critic = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic)]

    def step(real: torch.Tensor) -> None:
        made = generator(torch.zeros(6, 8))
        (critic(real).sum() - critic(made).sum()).backward()
        for optimizer in optimizers:
            optimizer.step()

    for (real,) in DataLoader(TensorDataset(torch.zeros(12, 16)), batch_size=4):
        step(real)
    assert [row["samples"] for row in recorder.take()["python.steps"] if row["micro_steps"]] == [4, 4, 4]
    # Without batches, they are those of the model that got most.
    step(torch.zeros(4, 16))
    assert [row["samples"] for row in recorder.take()["python.steps"] if row["micro_steps"]] == [10]


class Transform(nn.Module):
    def __init__(self, has_parameters: bool) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 4) if has_parameters else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        with torch.no_grad():
            return self.scale(x)


@pytest.mark.parametrize("has_parameters", [False, True])
def test_modules_that_a_dataset_calls_are_part_of_loading(recorder: Recorder, has_parameters: bool) -> None:
    class Transformed(Dataset[torch.Tensor]):
        def __init__(self) -> None:
            self.transform = Transform(has_parameters)

        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.transform(torch.ones(4))

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder.take()
    for batch in DataLoader(Transformed(), batch_size=4):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    rows = recorder.take()
    steps = rows["python.steps"]
    assert len(steps) == 4
    for step in steps:
        assert step["data_time"] >= 4 * 0.005
        assert (step["micro_steps"], step["samples"], step["validation_time"]) == (1, 4, 0)
    assert 0 < min(step["forward_time"] for step in steps) < 4 * 0.005
    called = {(row["module"], row["stage"]) for row in rows["python.torch_trace"] if row["stage"] != "backward"}
    assert called == {("Linear", "forward"), ("SGD", "step")}


def test_a_policy_that_plays_while_experience_is_loaded_keeps_its_rows(recorder: Recorder) -> None:
    policy = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    class Experience(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for _ in range(12):
                with torch.no_grad():
                    policy(torch.ones(1, 4))
                yield torch.ones(4)

    for batch in DataLoader(Experience(), batch_size=4):
        recorder.take()
        optimizer.zero_grad()
        policy(batch).sum().backward()
        optimizer.step()
    calls = [row["stage"] for row in recorder.take()["python.torch_trace"] if row["module"] == "Linear"]
    assert calls.count("forward") == 1
    loader = iter(DataLoader(Experience(), batch_size=4))
    recorder.take()
    next(loader)
    optimizer.step()
    rows = recorder.take()["python.torch_trace"]
    assert len([row for row in rows if row["module"] == "Linear"]) == 4, rows


def test_an_error_in_loading_is_the_loops(recorder: Recorder) -> None:
    class Broken(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise KeyError("no such file")

    seen = []
    with pytest.raises(KeyError, match="no such file"):
        for batch in DataLoader(Broken(), batch_size=None):
            seen.append(batch)
    assert seen == [1]
    rows = recorder.take()
    assert [row["batch_index"] for row in rows["python.data_trace"]] == [0] and rows["probe.drops"] == {}


class Longer(IterableDataset):
    """Says that it has fewer items than it gives."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(3, 2))


def test_a_warning_of_a_loader_comes_from_the_line_that_asked(recorder: Recorder) -> None:
    loader = DataLoader(Longer(), batch_size=None)
    assert len(loader) == 1  # Torch warns of more only who has asked.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(loader)) == 3
    # Objects of earlier tests that are collected now may warn too.
    of_loader = [warning for warning in caught if "IterableDataset" in str(warning.message)]
    assert {warning.filename for warning in of_loader} == {__file__}, caught
    assert len(recorder.take()["python.data_trace"]) == 3


def test_a_warning_of_a_loader_that_begins_comes_from_torch(recorder: Recorder) -> None:
    from torch.utils.data import dataloader

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(DataLoader([torch.zeros(1)], pin_memory=True))  # type: ignore[arg-type]
    pinned = [warning for warning in caught if "pin_memory" in str(warning.message)]
    assert {warning.filename for warning in pinned} == {dataloader.__file__}, caught


def test_what_is_only_like_a_loader_is_noted_as_far_as_it_is_one(recorder: Recorder) -> None:
    import probe_agent.torch as agent
    from torch.utils.data import dataloader

    # As fastai's.
    class Like:
        num_workers, timeout, prefetch_factor, persistent_workers, pin_memory = 0, 0, None, False, False
        pin_memory_device, collate_fn, generator, multiprocessing_context, in_order = "", None, None, None, True
        _index_sampler, _auto_collation, _dataset_kind = range(1), False, dataloader._DatasetKind.Map
        _IterableDataset_len_called, worker_init_fn, drop_last = None, None, False
        dataset = (torch.zeros(1),)

    agent.uninstall()
    agent.install()
    recorder.take()
    dataloader._SingleProcessDataLoaderIter(Like())
    (row,) = [row for row in recorder.take()["python.environment"] if row["num_workers"] is not None]
    assert (row["num_workers"], row["dataset"], row["sampler"], row["batch_size"]) == (0, "tuple", None, None)
    assert recorder.native.problem() == ""


def test_an_iterator_that_says_nothing_of_itself(recorder: Recorder) -> None:
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    class Odd(_SingleProcessDataLoaderIter):
        def __getattribute__(self, name: str) -> Any:
            if name == "_num_workers" and getattr(self, "_num_yielded", 0):
                raise RuntimeError("no")
            return super().__getattribute__(name)

    class Interrupted(Odd):
        @property
        def _dataset(self) -> Any:
            if multiprocessing.current_process().name == "interrupted":
                raise KeyboardInterrupt
            return self.__dict__["_dataset"]

        @_dataset.setter
        def _dataset(self, value: Any) -> None:
            self.__dict__["_dataset"] = value

    assert list(Odd(DataLoader([1, 2], batch_size=None)))  # type: ignore[arg-type]
    rows = recorder.take()
    assert [(row["batch_index"], row["num_workers"], row["pinned"]) for row in rows["python.data_trace"]] == [
        (0, None, None),
        (1, None, None),
    ]
    # Ctrl-C that comes in our code is training's.
    process = multiprocessing.current_process()
    before, process.name = process.name, "interrupted"
    try:
        with pytest.raises(KeyboardInterrupt):
            next(Interrupted(DataLoader([1, 2], batch_size=None)))  # type: ignore[arg-type]
    finally:
        process.name = before
    assert recorder.take()["python.data_trace"] == [] and recorder.native.problem() == ""


def test_switched_off_there_is_nothing() -> None:
    found = in_process(epochs, layers="-data", arguments=(0, None, False))
    assert found["trace"] == [] and len(found["steps"]) == 6


class _Queue:
    def __init__(self, size: int) -> None:
        self.size = size

    def qsize(self) -> int:
        return self.size


@pytest.mark.parametrize("pinned", [True, False])
def test_batches_that_the_pinning_thread_has_are_ready(recorder: Recorder, pinned: bool) -> None:
    # The attributes of a DataLoader's iterator that pins memory, which needs a device.
    from_workers = _Queue(1)

    class Iterator:
        _dataset = ()
        _num_workers = 2
        _worker_result_queue = from_workers
        _data_queue = _Queue(3) if pinned else from_workers
        _tasks_outstanding = 4

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = recorder.native.next_batch(lambda iterator: torch.randn(4, 32), Iterator())
    model(batch).sum().backward()
    optimizer.step()
    (row,) = recorder.take()["python.data_trace"]
    assert (row["queue_depth"], row["tasks_outstanding"]) == (4 if pinned else 1, 4)


def test_a_snippet_before_a_batch_is_no_cost_of_recording(recorder: Recorder) -> None:
    import time

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(100_000, 32), batch_size=4)
    #: After each snippet, the shares that were estimated until the next one.
    shares: list[list[float]] = []

    def snippet() -> None:
        recorder.native.want_boundary(False)
        before = recorder.native.thread_mode(recorder.native.ThreadMode.SUSPENDED)
        time.sleep(2.0)
        shares.append([])
        recorder.native.thread_mode(before)

    recorder.native.set_boundary_callback(snippet)
    deadline = time.monotonic() + 180
    try:
        for step, x in enumerate(loader):
            model(x).sum().backward()
            optimizer.step()
            time.sleep(0.01)
            if step == 330:
                recorder.native.want_boundary(True)
            rows = recorder.native.take_rows(False)["probe.overhead"] if step % 20 == 19 else []
            if rows and shares:
                shares[-1] += [row["estimated_share"] for row in rows]
                if len(shares) == 2 and len(shares[-1]) >= 2:
                    break
                if len(shares[-1]) >= 2:
                    recorder.native.want_boundary(True)
            assert time.monotonic() < deadline, shares
    finally:
        recorder.native.set_boundary_callback(None)
    # It was 4 and more after each: the seconds of the snippet, over steps of ten milliseconds. A busy machine may stop a hook for as
    # long as a fraction of that, but not after both.
    assert min(max(after) for after in shares) < 0.5, shares


def test_an_iterator_whose_constructor_takes_more_is_left_alone(recorder: Recorder) -> None:
    import inspect

    from torch.utils.data import dataloader

    # The signature of another torch, or of a library that replaced it before us.
    made: list[tuple[object, ...]] = []
    import probe_agent.torch as agent

    agent.uninstall()
    original = dataloader._BaseDataLoaderIter.__init__

    def __init__(self: object, loader: object, more: int = 1, *, another: int = 2) -> None:
        made.append((loader, more, another))
        original(self, loader)  # type: ignore[arg-type]

    dataloader._BaseDataLoaderIter.__init__ = __init__  # type: ignore[assignment]
    try:
        agent.install()
        assert inspect.signature(dataloader._BaseDataLoaderIter.__init__) == inspect.signature(__init__)
        loader = DataLoader([torch.zeros(1)])  # type: ignore[arg-type]
        iterator = dataloader._SingleProcessDataLoaderIter.__new__(dataloader._SingleProcessDataLoaderIter)
        dataloader._BaseDataLoaderIter.__init__(iterator, loader=loader, another=5)  # type: ignore[call-arg]
        dataloader._BaseDataLoaderIter.__init__(iterator, loader, 4)  # type: ignore[call-arg]
        assert made == [(loader, 1, 5), (loader, 4, 2)]
    finally:
        agent.uninstall()
        dataloader._BaseDataLoaderIter.__init__ = original
    agent.install()
