"""What `probe bench` asks of a process: the snippet that it sends calls :func:`answer`, which prints one line of JSON."""

from __future__ import annotations

import ast
import itertools
import json
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any, NamedTuple

from probe_agent.benchmark import inputs
from probe_agent.benchmark.kept_state import KeptState, training_objects
from probe_agent.benchmark.refused import RefusedError
from probe_agent.benchmark.timing import Repeat, time_calls
from probe_agent.eval import guard
from probe_agent.eval.ended import SnippetEnded

ALONE = (
    "what is timed here talks to other ranks, which do not run it; hint: time a module inside, such as model.module of "
    "DistributedDataParallel"
)
_TALKING_OPERATORS = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")


class _Call(NamedTuple):
    """One thing to time: an expression, or a part of a module's call."""

    #: The index among the requested expressions.
    expression: int
    #: The part of a module's call that is timed; empty for an expression.
    part: str
    repeat: Repeat
    #: The inputs in words.
    inputs: str


def answer(request: str, names: dict[str, Any]) -> None:
    """Times the expressions of a request with `names`, which the training code sees, and prints the result as JSON.

    `request`: JSON with `expressions` (one or two), `seconds`, and `is_last`: whether this is the last attempt. An expression
    whose value is a module is timed as calls of the module. The result is an object with `timings` and `remarks` about them; with `watching`, if
    training has to call a module first so that its inputs are known; or with `error` and `hint`.
    """
    torch = sys.modules.get("torch")
    requested = json.loads(request)
    try:
        if torch is None:
            raise RefusedError("this process has not imported torch")
        result = _measure(torch, requested, names)
    except RefusedError as error:
        result = {"error": str(error), "hint": error.hint}
    print(json.dumps(result))


def _measure(torch: Any, requested: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    codes = [_compiled(number, text) for number, text in enumerate(requested["expressions"])]
    objects = training_objects(torch)
    _check_shards(objects)
    kept = KeptState(torch, objects)
    result: dict[str, Any] = {}
    # Modules whose call has to be seen first. Hooks belong to the state that is put back, so modules are watched after that.
    unseen: list[Any] = []

    def run() -> None:
        values = [_first_value(torch, code, names) for code in codes]
        unseen.extend(each for each in values if _is_module(torch, each) and not inputs.has_seen(each))
        if unseen:
            return
        # Both expressions may be the same module.
        seen: dict[Any, Any] = {each: inputs.forget(each) for each in values if _is_module(torch, each)}
        calls: list[_Call] = []
        for index, (code, value) in enumerate(zip(codes, values)):
            if _is_module(torch, value):
                calls += _calls_of_module(torch, index, value, seen[value])
            else:
                calls.append(_Call(index, "", _repeated(code, names), ""))
        for call in calls:
            with _talk_refused(torch, by_operator=True):
                call.repeat(1)
        timings = time_calls([call.repeat for call in calls], float(requested["seconds"]), _synchronize(torch))
        result["remarks"] = [remark for code in codes if (remark := _without_gradients(torch, code, names))]
        result["timings"] = [
            {"index": call.expression, "part": call.part, "inputs": call.inputs, **timing._asdict()}
            for call, timing in zip(calls, timings)
        ]

    try:
        with _talk_refused(torch):
            changed = _undone(kept, run)
    finally:
        for number in range(len(codes)):
            linecache.cache.pop(_filename(number), None)
    for module in unseen:
        if requested["is_last"]:
            inputs.forget(module)
            raise RefusedError(
                f"training has not called this {type(module).__name__} in the last steps, so its inputs are not known",
                "time an expression that calls it with arguments of its own",
            )
        _check_watchable(module)
        inputs.watch(module)
    if unseen:
        return {"watching": len(unseen)}
    result["kept"] = {"tensors": len(kept.tensors), "bytes": kept.bytes, "seconds": kept.seconds, "put_back": changed}
    result["threads"] = torch.get_num_threads()
    return result


def _undone(kept: KeptState, run: Callable[[], None]) -> int:
    """Calls `run`, with copies of the gradients, and puts back what it changed, however it ends. Returns how many tensors had
    changed."""
    changed, is_run, ended = -1, False, None
    while changed < 0:
        try:
            if not is_run:
                is_run = True
                kept.replace_gradients()
                run()
            changed = kept.put_back()
        except SnippetEnded as error:
            # It may be raised at any moment, also before putting back has begun.
            ended = error
        except BaseException:
            kept.put_back()
            raise
    if ended is not None:
        raise ended
    return changed


def _filename(number: int) -> str:
    return f"<probe bench {'ab'[number]}>"


def _compiled(number: int, text: str) -> CodeType:
    """Compiles an expression. Raises SyntaxError."""
    name = _filename(number)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return compile(text, name, "eval", dont_inherit=True)


def _first_value(torch: Any, code: CodeType, names: dict[str, Any]) -> Any:
    with _talk_refused(torch, by_operator=True):
        return eval(code, names)


def _without_gradients(torch: Any, code: CodeType, names: dict[str, Any]) -> str | None:
    """A remark if the expression is the step of an optimizer without a gradient: that does nothing, and takes no time."""
    call = ast.parse("".join(linecache.getlines(code.co_filename)), mode="eval").body
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
        return None
    if any(isinstance(node, ast.Call) for node in ast.walk(call.func.value)):
        return None
    optimizer = eval(compile(ast.Expression(call.func.value), code.co_filename, "eval", dont_inherit=True), names)
    if not issubclass(type(optimizer), torch.optim.Optimizer):
        return None
    if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
        return None
    return (
        f"no parameter of this {type(optimizer).__name__} has a gradient between two steps, so what was timed does nothing; "
        "optimizer_time in python.steps is what it takes in training"
    )


def _is_module(torch: Any, value: Any) -> bool:
    return issubclass(type(value), torch.nn.Module)


def _calls_of_module(torch: Any, index: int, module: Any, how: inputs.ModuleCall) -> Iterator[_Call]:
    if how.problem:
        raise RefusedError(
            f"a call of this {type(module).__name__} can't be made again: {how.problem}",
            "time an expression that calls it with arguments of its own",
        )
    forward, backward = _passes(torch, module, how)
    yield _Call(index, "forward", forward, how.words)
    if backward is not None:
        yield _Call(index, "forward and backward", backward, how.words)


def _repeated(code: CodeType, names: dict[str, Any]) -> Repeat:
    """A function that evaluates an expression a number of times, in a loop that hides no name of the program."""
    text = "".join(linecache.getlines(code.co_filename))
    loop = ast.parse(
        "def __probe_repeat__(__probe_calls__):\n    for __probe_call__ in __probe_calls__:\n        pass\n"
    )
    function: Any = loop.body[0]
    function.body[0].body = [ast.Expr(ast.parse(text, code.co_filename, "eval").body)]
    made: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(loop), code.co_filename, "exec", dont_inherit=True), names, made)
    repeat = made["__probe_repeat__"]
    return lambda calls: repeat(itertools.repeat(None, calls))


def _passes(torch: Any, module: Any, how: inputs.ModuleCall) -> tuple[Repeat, Repeat | None]:
    """Forward passes of a module, and both passes where gradients were on and go anywhere."""
    arguments, keywords, leaves = inputs.made(how)

    @contextmanager
    def modes() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(how.gradients))
            for kind, dtype in how.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield

    def forward(calls: int) -> None:
        with modes():
            for _ in range(calls):
                module(*arguments, **keywords)

    with _talk_refused(torch, by_operator=True), modes():
        results = [each for each in _tensors(torch, module(*arguments, **keywords)) if each.requires_grad]
    to = [*leaves, *(each for each in module.parameters() if each.requires_grad)]
    if not results or not to:
        return forward, None
    ones = [torch.ones_like(each) for each in results]
    del results

    def both(calls: int) -> None:
        for _ in range(calls):
            with modes():
                found = [each for each in _tensors(torch, module(*arguments, **keywords)) if each.requires_grad]
            torch.autograd.grad(found, to, ones, allow_unused=True)

    return forward, both


def _tensors(torch: Any, value: Any) -> list[Any]:
    """The tensors of an output: itself, or those in its tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _tensors(torch, each)]
    return []


def _synchronize(torch: Any) -> Callable[[], object]:
    if torch.cuda.is_initialized():
        return torch.cuda.synchronize  # type: ignore[no-any-return]
    accelerator = getattr(torch, "accelerator", None)
    # If training does not use CUDA, nothing of it may be called: that would initialize it.
    if accelerator is not None and "cuda" not in str(accelerator.current_accelerator()) and accelerator.is_available():
        return accelerator.synchronize  # type: ignore[no-any-return]
    return lambda: None


@contextmanager
def _talk_refused(torch: Any, by_operator: bool = False) -> Iterator[None]:
    """Makes communication with other ranks an error: they do not run this, so it would wait for ever. `by_operator`: also
    in C++ operators, which costs time for each operator."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        yield
        return
    with ExitStack() as stack:
        if by_operator:
            stack.enter_context(_refusing_mode(torch))
        else:
            guard.guard_groups(stack, ALONE)
            # Its forward pass prepares for gradients that never come.
            stack.enter_context(guard.refused(torch.nn.parallel.DistributedDataParallel, "forward", ALONE))
        yield


def _refusing_mode(torch: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refusing(TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # If this is True, torch imports all of torch.compile at the first operator, while training waits.
            return "_dynamo" in vars(torch)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in _TALKING_OPERATORS:
                raise RuntimeError(ALONE)
            return func(*args, **(kwargs or {}))

    return Refusing()


def _check_shards(objects: list[Any]) -> None:
    """Raises RefusedError where parameters are sharded: one rank has no whole parameters, and gathering them keeps state."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    names = ("FullyShardedDataParallel", "FSDPModule")
    wanted = tuple(found for name in names if isinstance(found := getattr(fsdp, name, None), type))
    if any(issubclass(type(each), wanted) for each in objects):
        raise RefusedError(
            "parameters are sharded over ranks (FSDP), and this rank would have to gather them alone",
            "time it in a run of one rank",
        )


def _check_watchable(module: Any) -> None:
    """Raises RefusedError where a hook on the module would have training compile it anew."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["frames"]["ok"]:
        raise RefusedError(
            f"training is compiled, and looking at a call of this {type(module).__name__} would have it compiled again",
            "time an expression that calls it with arguments of its own",
        )
