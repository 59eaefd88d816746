"""What recording must not do: change the loss, break graphs, record where nothing trains, or fail loudly."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, by_module, in_interpreter, in_process, train
from torch import nn

torch.set_num_threads(1)


def losses(agent: bool, policy: tuple[int, str, bool] | None = None) -> list[str]:
    """Losses, to the bit, of training with dropout, random data and a shuffling DataLoader; in a process of its own."""
    if agent:
        import probe_agent.torch

        probe_agent.torch.install()
    if policy is not None:
        from probe_agent import _native

        stride, layers, compare = policy
        assert _native.set_policy(3, stride, layers, compare)
    torch.manual_seed(3)
    model = nn.Sequential(Net(16, 2), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16))
    found = []
    for _ in range(2):
        for (x,) in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            found += train(model, optimizer, x + torch.randn_like(x) * 0.1, 1)
    if agent:
        from probe_agent import _native

        assert len(_native.take_rows()["python.steps"]) == 16
    return [loss.hex() for loss in found]


def test_the_loss_is_bit_identical() -> None:
    alone = in_process(losses, arguments=(False,))
    assert in_process(losses, arguments=(True,)) == alone
    for policy in ((0, "all", False), (1, "all", True), (3, "all", False), (2, "-forward,-backward", False)):
        assert in_process(losses, arguments=(True, policy)) == alone, policy


def importing() -> dict[str, Any]:
    import sys
    import time

    before = {name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules}
    import probe_agent.torch

    begin = time.process_time()
    probe_agent.torch.install()
    took = time.process_time() - begin
    probe_agent.torch.install()
    imported = {name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules} - before
    return {"imported": sorted(imported), "seconds": took, "cuda": torch.cuda.is_initialized()}


def test_install_is_light() -> None:
    found = in_interpreter(importing)
    assert found["imported"] == [] and not found["cuda"]
    # Some ten milliseconds of the processor; the bound only catches an import that crept in.
    assert found["seconds"] < 0.5


class Preempted(Exception):
    """An exception that a program's signal handler raises."""


def handle(number: int, frame: Any) -> None:
    raise Preempted


@pytest.fixture(params=[handle, partial(handle), signal.default_int_handler], ids=["function", "partial", "Ctrl-C"])
def handled(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """SIGUSR1 has a handler that raises this."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield KeyboardInterrupt if request.param is signal.default_int_handler else Preempted
    signal.signal(signal.SIGUSR1, before)


class Tripping(dict):  # type: ignore[type-arg]
    """An object that raises the signal when it is first looked through."""

    tripped = False

    def values(self) -> Any:
        if not self.tripped:
            self.tripped = True
            signal.raise_signal(signal.SIGUSR1)
        return super().values()


def test_a_signal_while_modules_are_named_reaches_the_program(recorder: Recorder, handled: type[BaseException]) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.__dict__["_parameters"] = Tripping(model._parameters)
    with pytest.raises(handled):
        model(torch.ones(1, 2))
    assert recorder.native.problem() == ""
    recorder.take()
    model(torch.ones(1, 2))
    recorder.native.mark_step()
    assert {row["module"] for row in recorder.take()["python.torch_trace"]} == {"Sequential", "0"}


def interrupted_install(place: str, ctrl_c: bool) -> dict[str, Any]:
    """What reaches the program of a signal that comes while the agent installs, and whether anything is recorded then."""
    import probe_agent.torch
    from probe_agent import _native
    from probe_agent.torch import autograd

    signal.signal(signal.SIGUSR1, signal.default_int_handler if ctrl_c else handle)

    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    # Within a layer, and after all of them.
    if place == "layer":
        probe_agent.torch._LAYERS["data"] = [("iterator", interrupt)]
    else:
        autograd.measure_costs = interrupt
    reached = None
    try:
        probe_agent.torch.install()
    except (Preempted, KeyboardInterrupt) as error:
        reached = type(error).__name__
    nn.Linear(4, 4)(torch.ones(4))
    return {"reached": reached, "enabled": _native.is_enabled(), "problem": _native.problem()}


@pytest.mark.parametrize("place", ["layer", "end"])
@pytest.mark.parametrize("ctrl_c", [False, True])
def test_a_signal_while_the_agent_installs_reaches_the_program(place: str, ctrl_c: bool) -> None:
    found = in_process(interrupted_install, arguments=(place, ctrl_c))
    raised = "KeyboardInterrupt" if ctrl_c else "Preempted"
    assert (found["reached"], found["enabled"]) == (raised, False)
    assert found["problem"] == f"recording is off: {raised}()"


def test_a_signal_while_the_agent_connects_reaches_the_program(
    recorder: Recorder, handled: type[BaseException]
) -> None:
    calls = []

    def connect() -> None:
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)

    recorder.native.set_first_use_callback(connect)
    model = nn.Linear(2, 2)
    with pytest.raises(handled):
        model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    assert len(calls) == 2, "broken off, it is done at the next sign of training, and once"
    assert recorder.native.problem() == ""


def test_what_fails_in_our_own_code_is_not_the_programs(recorder: Recorder) -> None:
    def connect() -> None:
        raise Preempted

    before = signal.signal(signal.SIGUSR1, handle)
    recorder.native.set_first_use_callback(connect)
    nn.Linear(2, 2)(torch.ones(1, 2))
    signal.signal(signal.SIGUSR1, before)
    assert "the first connection" in recorder.native.problem()
    recorder.native.set_problem("")


def going_last() -> list[str]:
    """What is said of a model and an optimizer that go when names of modules are None, as at an interpreter's end."""
    import probe_agent.torch
    from probe_agent import _native

    probe_agent.torch.install()
    model = nn.Sequential(Net(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    train(model, optimizer, torch.ones(2, 16), 3)
    taken = len(_native.take_rows()["python.steps"])
    said: list[str] = []
    sys.unraisablehook = lambda raised: said.append(repr(raised.exc_value))
    for name in [name for name in vars(_native) if not name.startswith("__")]:
        setattr(_native, name, None)
    del model, optimizer
    gc.collect()
    return [*said, str(taken)]


def test_models_and_optimizers_that_go_last_go_in_silence() -> None:
    assert in_process(going_last) == ["3"]


def test_uninstall_puts_torch_back(recorder: Recorder) -> None:
    import probe_agent.torch as agent
    from torch import autograd
    from torch.utils.data import dataloader

    agent.uninstall()
    names = [
        autograd._engine_run_backward,
        dataloader._BaseDataLoaderIter.__next__,
        torch.optim.Optimizer.profile_hook_step,
    ]
    assert all("probe_agent" not in function.__code__.co_filename for function in names)
    assert not recorder.native.is_patched(nn.Linear) and "__init_subclass__" not in nn.Module.__dict__
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 32), 1)
    assert recorder.take()["python.torch_trace"] == []
    agent.install()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 32), 1)
    assert len(recorder.take()["python.steps"]) == 1


def test_a_warning_in_backward_comes_from_the_line_that_called_it(recorder: Recorder) -> None:
    model = nn.Linear(2, 2)
    model.register_full_backward_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(torch.ones(1, 2)).sum().backward()
    # Torch counts frames to the program's line, which warns because no input has a gradient.
    assert [warning.filename for warning in caught if "backward hook" in str(warning.message)] == [__file__]


def test_copies_and_pickles_of_models_work(recorder: Recorder) -> None:
    import copy
    import pickle

    model = Net()
    model(torch.randn(2, 32))
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    torch.testing.assert_close(copied(torch.ones(1, 32)), model(torch.ones(1, 32)))
    scripted = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(1, 4))
    assert scripted(torch.ones(2, 4)).shape == (2, 4)


def test_a_subclass_made_later_is_recorded(recorder: Recorder) -> None:
    class Tagged(nn.Linear):
        tag = ""

        def __init_subclass__(cls, tag: str = "", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.tag = tag

    class Later(Tagged, tag="x"):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x * 2)

    assert Later.tag == "x"
    Later(4, 4)(torch.randn(1, 4))
    assert [row["module"] for row in recorder.take()["python.torch_trace"]] == ["Later"]


class Worker(torch.utils.data.Dataset):
    """Calls a module in the DataLoader's worker, and says whether the agent is on there."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, item: int) -> torch.Tensor:
        from probe_agent import _native

        with torch.no_grad():
            self.model(torch.ones(1, 2))
        return torch.tensor(float(_native.is_enabled()))


def test_forked_workers_record_nothing(recorder: Recorder) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.ones(1, 1), 1)
    for enabled in torch.utils.data.DataLoader(Worker(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
        assert enabled.tolist() == [0.0, 0.0]
        train(model, optimizer, torch.ones(1, 1), 1)
    assert recorder.native.is_enabled()
    rows = recorder.take()
    assert len(rows["python.steps"]) == 5
    assert {row["input_shape"] for row in rows["python.torch_trace"] if row["stage"] == "forward"} == {"[1, 1]"}


def test_a_full_ring_loses_whole_intervals_and_says_how_many(recorder: Recorder) -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(50)])
    calls = 1_500
    for _ in range(calls):
        model(torch.ones(1))
    rows = recorder.take()
    drops = rows["probe.drops"]
    lost = sum(
        count for (table, reason), count in drops.items() if (table, reason) == ("python.torch_trace", "ring full")
    )
    steps_lost = sum(count for (table, _), count in drops.items() if table == "python.steps")
    kept = rows["python.torch_trace"]
    assert 0 < lost and 0 < len(kept)
    # Every call is a row or counted; outermost ones are kept first.
    assert len(kept) + lost + steps_lost == calls * 51
    # No half intervals: inside each kept outermost call that lost nothing, the own times add up.
    for row in kept:
        assert 0 <= row["duration"] <= row["total_duration"]
    model(torch.ones(1))
    assert len(recorder.take()["python.torch_trace"]) == 51


def test_threads_do_not_mix(recorder: Recorder) -> None:
    def work(width: int) -> None:
        model = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        for _ in range(50):
            model(torch.randn(2, width)).sum().backward()

    threads = [threading.Thread(target=work, args=(width,)) for width in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = recorder.take()["python.torch_trace"]
    roots = [row for row in trace if row["module"] == "Sequential" and row["stage"] == "forward"]
    assert len(roots) == 150 and len({row["thread"] for row in roots}) == 3
    for shape in ("[2, 3]", "[2, 5]", "[2, 7]"):
        assert len({row["thread"] for row in roots if row["input_shape"] == shape}) == 1
    assert all(row["duration"] <= row["total_duration"] * 1.000001 for row in trace)
    assert by_module(trace, "backward")["0"] > 0


def test_device_modes_and_odd_arguments_are_no_problem(recorder: Recorder) -> None:
    class Odd(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return args, kwargs

    model = Odd()
    model(), model(None), model([torch.ones(2)]), model({"x": 1}, key=torch.ones(3, 2)), model(torch.tensor(1.0))
    model(torch.ones(1, 2, 1, 2, 1, 2, 1, 2)), model(torch.ones(1, 2, 3, 4, 5, 6)), model(torch.ones(0, 3))
    shapes = [row["input_shape"] for row in recorder.take()["python.torch_trace"]]
    assert shapes == [None, None, None, "[3, 2]", "[]", "[1, 2, 1, 2, 1, 2, …]", "[1, 2, 3, 4, 5, 6]", "[0, 3]"]
    assert recorder.native.problem() == ""


def test_a_mode_of_the_program_hears_nothing_of_ours(recorder: Recorder) -> None:
    from torch.overrides import TorchFunctionMode

    heard = []

    class Listening(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            heard.append(func.__name__)
            return func(*args, **(kwargs or {}))

    layer, batches = nn.Linear(4, 2), torch.utils.data.DataLoader([torch.ones(3, 4)] * 2, batch_size=None)
    with Listening(), torch.no_grad():
        for x in batches:
            layer(x)
        _ = x.shape
    # The last is the program's own sample.
    assert [name for name in heard if name in ("linear", "__get__")] == ["linear", "linear", "__get__"]
    rows = recorder.take()
    assert [row["input_shape"] for row in rows["python.torch_trace"]] == ["[3, 4]"] * 2
    assert [(row["samples"], row["bytes"]) for row in rows["python.data_trace"]][:2] == [(3, 48)] * 2
