"""``forward=fast_call``: modules are called past torch's own ``__call__``, and a call has all its effects all the same."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process, train
from torch import nn

torch.set_num_threads(1)

FAST = "forward=fast_call"


def can_be_had() -> bool:
    """Whether this torch has the functions that tell what watches calls."""
    try:
        from torch._C._dynamo.eval_frame import get_eval_frame_callback  # noqa: F401
    except ImportError:  # 2.5
        return False
    return True


needs_fast_call = pytest.mark.skipif(not can_be_had(), reason="this torch can't have the layer, and gets tp_call")


class Traced(nn.Module):
    """Notes the caller of its ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.callers: list[str] = []

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        import sys

        frame = sys._getframe(1)
        self.callers.append(frame.f_code.co_name)
        return self.linear(x) * scale


class Called(Traced):
    """A module with a ``__call__`` of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().__call__(*args, **kwargs)


class Impl(Traced):
    """A module with an own version of what ``__call__`` calls."""

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        return 3 * super()._call_impl(*args, **kwargs)


def trained(fast: bool) -> dict[str, Any]:
    """Rows and losses of a training."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    torch.manual_seed(0)
    model = Net(16, 2)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 16), 5)
    rows = recorder.take()["python.torch_trace"]
    told = [(row["step"], row["module"], row["stage"], row["depth"], row["call_index"]) for row in rows]
    layer = recorder.native.layers()["forward"]
    traced = Traced()
    traced(torch.ones(2, 4))
    agent.uninstall()
    traced(torch.ones(2, 4))
    return {"losses": losses, "rows": told, "layer": layer, "callers": traced.callers}


@needs_fast_call
def test_rows_and_results_are_the_same() -> None:
    fast, plain = in_process(trained, FAST, (True,)), in_process(trained, "", (False,))
    assert (fast["layer"], plain["layer"]) == ("fast_call", "tp_call")
    assert fast["losses"] == plain["losses"] and fast["rows"] == plain["rows"]
    # Called directly, and by torch's own functions again when the layer is out.
    assert fast["callers"] == ["trained", "_call_impl"]
    assert plain["callers"] == ["_call_impl", "_call_impl"]


def special() -> dict[str, Any]:
    """A module's result and the caller of its ``forward``, in cases where a call has further effects."""
    import probe_agent.torch as agent
    import torch._dynamo
    from torch.nn.modules import module as modules

    agent.install()
    x = torch.ones(2, 4)
    found: dict[str, Any] = {}

    def ask(name: str, model: Traced, **kwargs: Any) -> None:
        model.callers.clear()
        with torch.no_grad():
            model.linear.weight.fill_(1.0)
            model.linear.bias.fill_(0.0)  # type: ignore[union-attr]
        answer = model(x, **kwargs)
        found[name] = [float(answer.detach().flatten()[0]), list(model.callers)]

    def doubled(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return 2 * output

    ask("plain", Traced())
    ask("keyword", Traced(), scale=0.5)
    ask("__call__", Called())
    ask("_call_impl", Impl())
    hooked = Traced()
    handle = hooked.register_forward_hook(doubled)
    ask("forward hook", hooked)
    handle.remove()
    ask("hook removed", hooked)
    handle = hooked.register_forward_pre_hook(lambda _module, args: (3 * args[0],))
    ask("pre-hook", hooked)
    handle.remove()
    for register in (hooked.register_full_backward_hook, hooked.register_full_backward_pre_hook):
        handle = register(lambda *_: None)  # type: ignore[operator]
        ask(register.__name__, hooked)
        handle.remove()
    handle = modules.register_module_forward_hook(doubled)
    ask("global hook", hooked)
    handle.remove()
    hooked.forward = lambda x, scale=1.0: 7 * x  # type: ignore[method-assign]
    ask("forward of its own", hooked)
    own: Any = Traced()
    own._call_impl = lambda x: 11 * x
    ask("_call_impl of its own", own)
    Later = type("Later", (Traced,), {})
    later = Later()
    ask("before", later)
    Later.__call__ = lambda self, x: 5 * self.forward(x)  # type: ignore[method-assign]
    agent.forward.patch_all()
    ask("__call__ of later", later)
    with torch.profiler.profile():
        ask("profiler", Traced())
    compiled = Traced()
    compiled.compile(backend="eager")
    ask("compiled", compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = Net(8, 1)
        graph = torch.jit.trace(net, torch.ones(2, 8))
    found["scopes"] = sorted({node.scopeName() for node in graph.inlined_graph.nodes() if node.scopeName()})
    found["fx"] = [
        str(node.target) for node in torch.fx.symbolic_trace(Net(8, 1)).graph.nodes if node.op == "call_module"
    ]
    counter = torch._dynamo.testing.CompileCounter()
    torch.compile(Net(8, 1), backend=counter, fullgraph=True)(torch.ones(2, 8))
    found["dynamo"] = [int(counter.frame_count), int(counter.op_count)]
    agent.uninstall()
    return found


@needs_fast_call
def test_whatever_else_a_call_means_it_means_still() -> None:
    fast = in_process(special, FAST)
    plain = in_process(special)
    answers = {name: told[0] for name, told in plain.items() if name not in ("scopes", "fx", "dynamo")}
    assert {name: told[0] for name, told in fast.items() if name in answers} == answers
    assert answers["plain"] == 4.0 and answers["forward hook"] == 8.0 and answers["_call_impl of its own"] == 11.0
    direct = {name for name in answers if fast[name][1] in (["ask"], ["<lambda>"])}
    assert direct == {"plain", "keyword", "hook removed", "before", "__call__ of later"}
    assert [fast[name] for name in ("scopes", "fx", "dynamo")] == [plain[name] for name in ("scopes", "fx", "dynamo")]
    assert len(fast["scopes"]) > 3 and "layers.0.up" in fast["fx"] and fast["dynamo"][0] == 1


class Fails(nn.Module):
    """Raises in its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("the second call")
        return x


def failing() -> dict[str, Any]:
    """An exception in ``forward``, and a snippet that may not train beside training."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    model = nn.Sequential(Fails())
    said = []
    for _ in range(3):
        try:
            model(torch.ones(1))
        except ValueError as error:
            said.append(str(error))
    recorder.native.mark_step()
    rows = recorder.take()
    agent.uninstall()
    return {"said": said, "rows": len(rows["python.torch_trace"]), "drops": len(rows["probe.drops"])}


def test_exceptions_pass_through() -> None:
    found = in_process(failing, FAST)
    assert found == {"said": ["the second call"], "rows": 6, "drops": 0}


def without_what_it_needs() -> dict[str, Any]:
    """A torch that does not say whether it profiles."""
    from torch.autograd import profiler

    del profiler._is_profiler_enabled
    import probe_agent.torch as agent

    agent.install()
    model = Traced()
    model(torch.ones(2, 4))
    told = {"layer": agent._native.layers()["forward"], "problem": agent._native.problem(), "callers": model.callers}
    agent.uninstall()
    return told


def test_where_it_can_not_be_had_modules_are_recorded_as_ever() -> None:
    found = in_process(without_what_it_needs, FAST)
    assert found["layer"] == "tp_call" and found["callers"] == ["_call_impl"]
    assert "forward: no fast_call" in found["problem"]
