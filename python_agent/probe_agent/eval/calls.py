"""Which calls may run beside training, and what comes out of them."""

from __future__ import annotations

import ast
import sys

from probe_agent.eval import rules, values
from probe_agent.eval.policy import BetweenSteps, SnippetWalk, words
from probe_agent.eval.values import (
    BUILTIN,
    CONTAINERS,
    LIBRARY,
    LIVE,
    OWN,
    READING_METHODS,
    AbstractValue,
    holding,
    live,
    own,
)


def call(walk: SnippetWalk, node: ast.Call, callee: ast.expr) -> AbstractValue:
    """The value of a call; raises BetweenSteps where it must not run beside training."""
    receiver = walk.expression(callee.value) if isinstance(callee, ast.Attribute) else None
    function = walk.expression(callee)
    given = [walk.expression(argument) for argument in node.args]
    named = {keyword.arg: walk.expression(keyword.value) for keyword in node.keywords}
    every = [*given, *named.values()]
    if function.whose == BUILTIN and "." not in function.path:
        return _builtin(walk, node, function.path, given, named)
    if function.whose == LIBRARY and function.path.startswith("builtins."):
        return _builtin(walk, node, function.path[len("builtins.") :], given, named)
    if function.whose in (LIBRARY, BUILTIN):
        return _library(node, function, every)
    if receiver is not None and isinstance(callee, ast.Attribute) and not function.function:
        return _method(walk, node, callee, receiver, every)
    if function.function:
        # Its body is walked by itself, with everything it might be given.
        return live() if function.whose == OWN or function.fresh else _found(_reached(callee))
    if function.whose == LIVE:
        return _found(_reached(callee))
    _trains(function, callee)
    _nothing_live(node, every)
    return own()


def _found(what: str) -> AbstractValue:
    raise BetweenSteps(what)


def _reached(callee: ast.expr) -> str:
    if isinstance(callee, ast.Name):
        return f"calls {callee.id}, which is a live object"
    return f"calls {words(callee)}, which is reached from a live object"


def _nothing_live(node: ast.Call, every: list[AbstractValue]) -> None:
    if any(value.whose == LIVE for value in every):
        _found(f"gives a live object to {words(node.func)}")


def _builtin(
    walk: SnippetWalk, node: ast.Call, name: str, given: list[AbstractValue], named: dict[str | None, AbstractValue]
) -> AbstractValue:
    every = [*given, *named.values()]
    if name in rules.UNSEEN:
        _found(f"calls {name}, which runs what cannot be seen")
    if name == "print":
        if "file" in named and named["file"].whose == LIVE:
            _found("prints into a live object")
        return own()
    if name in ("setattr", "delattr") and given and given[0].whose != OWN and not given[0].fresh:
        _found(f"changes {words(node.args[0])}, which is not the snippet's own")
    if name == "setattr" and len(given) == 3 and given[2].whose == LIVE:
        walk.now_holds(node.args[0])
    if name in rules.ITERATING:
        return _iterating(node, name, given, named)
    if name == "next" and given:
        if given[0].whose == LIVE and not given[0].fresh:
            _found(f"takes the next of {words(node.args[0])}, which is a live object")
        return live() if given[0].whose == LIVE else own()
    if name in rules.READING:
        if name in ("globals", "locals") or (name == "vars" and not given):
            return AbstractValue(LIVE, type=dict)
        if not rules.READING[name]:
            return own({"str": str, "repr": str, "format": str, "dir": list}.get(name))
        return _reading(name, given)
    if name not in ("delattr", "setattr", "super", "object", "property", "staticmethod", "classmethod"):
        _nothing_live(node, every)
    return own()


def _reading(name: str, given: list[AbstractValue]) -> AbstractValue:
    if not any(value.whose == LIVE for value in given):
        if name == "getattr" and given and given[0].whose == LIBRARY:
            named = len(given) > 1 and isinstance(given[1].known, str)
            return values.attribute(given[0], given[1].known) if named else AbstractValue(LIBRARY)
        return own()
    if name == "vars":
        found = values.static(given[0].known, "__dict__")
        return live(found) if type(found) is dict else AbstractValue(LIVE, type=dict)
    if name == "getattr" and len(given) > 1 and isinstance(given[1].known, str):
        found = values.attribute(given[0], given[1].known)
        return found.join(given[2]) if len(given) > 2 and found.known is values.UNKNOWN else found
    return live() if name in ("getattr", "type") else AbstractValue(LIVE, fresh=True)


def _iterating(
    node: ast.Call, name: str, given: list[AbstractValue], named: dict[str | None, AbstractValue]
) -> AbstractValue:
    functions = [named["key"]] if "key" in named else []
    through = list(zip(node.args, given))
    if name in ("map", "filter") and through:
        functions.append(through.pop(0)[1])
    if name in ("min", "max") and len(through) > 1:
        parts = [value for _, value in through]  # compared, not gone through
    else:
        parts = []
        for argument, value in through:
            part = values.element(value) if not isinstance(argument, ast.Starred) else value
            if part is None:
                _found(f"goes through {words(argument)}, which may run its code")
            else:
                parts.append(part)
    parts += [value for key, value in named.items() if key != "key"]
    for function in functions:
        if function.whose == LIVE and not function.function:
            _found(f"calls {words(node)} with a live function")
        reads = function.function or function.known is None or _reads(function)
        if not reads and any(part.whose == LIVE for part in parts):
            _found(f"gives live objects to a function in {words(node)}")
    if name in ("min", "max", "next"):
        result = parts[0] if parts else own()
        for part in parts[1:]:
            result = result.join(part)
        return result
    if name in ("all", "any"):
        return own(bool)
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict, "sorted": list}.get(name)
    return holding(parts + [live()] * (name in ("map", "filter") and bool(functions) and functions[0].function), made)


def _reads(function: AbstractValue) -> bool:
    if function.whose == BUILTIN:
        return function.path in rules.READING or function.path in rules.ITERATING
    return function.whose == OWN or rules.only_reads(function.path)


def _library(node: ast.Call, function: AbstractValue, every: list[AbstractValue]) -> AbstractValue:
    path = function.path
    if not path:
        _found(f"calls {words(node.func)}, which may be any function")
    if rules.talks(path):
        _found(f"calls {path}, which speaks with other ranks")
    if rules.trains(path):
        _found(f"calls {path}, which runs a backward pass")
    if rules.changes(path):
        _found(f"calls {path}, which changes what training uses")
    if not rules.only_reads(path):
        _nothing_live(node, every)
    if path in rules.REACHING:
        return (
            AbstractValue(LIVE, type=list, fresh=True)
            if path.startswith(("gc.", "inspect.stack", "threading.en"))
            else live()
        )
    made = function.known if isinstance(function.known, type) else None
    if any(value.whose == LIVE for value in every):
        return AbstractValue(LIVE, fresh=path.startswith("copy."))
    return AbstractValue(OWN, type=made)


def _method(
    walk: SnippetWalk, node: ast.Call, callee: ast.Attribute, receiver: AbstractValue, every: list[AbstractValue]
) -> AbstractValue:
    name = callee.attr
    holds_live = any(value.whose == LIVE for value in every)
    if receiver.whose == OWN:
        if receiver.type is str or (receiver.type is not None and receiver.type in values.SCALARS):
            return own(str if receiver.type is str and name not in ("split", "splitlines", "encode") else None)
        if name == "backward":
            _found(f"calls {words(callee)}, a backward pass")
        _trains(receiver, callee, name)
        if holds_live:
            if receiver.type not in CONTAINERS:
                _nothing_live(node, every)
            walk.now_holds(callee.value)
        return own()
    if receiver.whose == LIVE and receiver.type in CONTAINERS:
        if receiver.fresh:
            return live() if name not in ("index", "count") else own()
        if name in READING_METHODS[receiver.type]:
            if name in ("index", "count"):
                return own(int)
            if name == "get":
                found = values.item(receiver, walk.expression(node.args[0])) if node.args else live()
                return found.join(every[1]) if len(every) > 1 else found
            return AbstractValue(LIVE, type=receiver.type if name == "copy" else list, fresh=True)
    return _found(_reached(callee))


def _trains(value: AbstractValue, callee: ast.expr, method: str | None = None) -> None:
    """A module or an optimizer that the snippet made itself: it runs where training does."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value.type, type):
        return
    if issubclass(value.type, torch.nn.Module) and method in (None, "forward"):
        _found(f"runs {words(callee)}, a module")
    if issubclass(value.type, torch.optim.Optimizer) and method == "step":
        _found(f"steps {words(callee)}, an optimizer")
