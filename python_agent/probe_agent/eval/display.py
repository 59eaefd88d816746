"""Shows a snippet's last value: the facts that people ask for, and never a megabyte of digits.

Only attributes are read and numbers reduced: no gradient is recorded, and beside training no large tensor on a device
is touched, because reading it would wait for everything that training has queued there.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from itertools import islice
from typing import Any

from probe_agent.eval import safe_text

# Characters of a long text that are shown.
LONGEST = 10_000
# Elements of a container, lines of a module, and levels of both that are shown.
MAX_ELEMENTS = 20
MAX_LINES = 30
DEEPEST = 3
# Characters at which a text in a container is cut.
MAX_TEXT_LENGTH = 500
ALL_OF_IT = "; print() shows them all"
# Elements of a tensor that are shown, reduced at a time, and reduced at all.
MAX_VALUES = 6
CHUNK = 1 << 20
MAX_REDUCED = 1 << 24
# Elements of the largest tensor on a device that is copied to the host beside training.
MAX_COPIED = 1 << 16

_TEXTS: dict[type, str] = {str: "characters", bytes: "bytes", bytearray: "bytes"}
_CONTAINERS = (list, tuple, set, frozenset, deque)
_PLAIN_REPRS = tuple(kind.__repr__ for kind in (*_CONTAINERS, dict, OrderedDict, defaultdict, Counter))


def text(value: object, beside: bool) -> str:
    """`value` as it is shown; `beside`: training goes on meanwhile."""
    torch = sys.modules.get("torch")
    shown = None
    if torch is not None:
        try:
            if isinstance(value, torch.Tensor):
                shown = _tensor(torch, value, beside)
            elif isinstance(value, torch.nn.Module):
                shown = _module(torch, value)
        except Exception:
            # An object that only claims to be a tensor or a module: its own repr is shown.
            shown = None
    if type(value) in _TEXTS:
        return _start(value, LONGEST, ALL_OF_IT)
    return safe_text.cut(_brief(value, 0) if shown is None else shown, LONGEST, ALL_OF_IT)


def _start(value: Any, longest: int, hint: str = "") -> str:
    """A text in quotes. Only the start of a long text is copied, because only that is shown."""
    more = len(value) - longest
    words = repr(value[:longest])
    return f"{words}... ({more} more {_TEXTS[type(value)]}{hint})" if more > 0 else words


def _brief(value: Any, depth: int) -> str:
    """A value in one line; where `depth` is above 0, as a part of another value."""
    torch = sys.modules.get("torch")
    if depth and torch is not None:
        try:
            if isinstance(value, torch.Tensor):
                return f"<{_head(torch, value)}>"
            if isinstance(value, torch.nn.Module):
                return f"<{type(value).__name__}, {_count(_parameters(value)[0])} parameters>"
        except Exception:
            return f"<{type(value).__name__}>"
    if isinstance(value, (*_CONTAINERS, dict)) and type(value).__repr__ in _PLAIN_REPRS and len(value):
        return _container(value, depth)
    if type(value) in _TEXTS:
        return _start(value, MAX_TEXT_LENGTH)
    shown = repr(value)
    return safe_text.cut(shown, MAX_TEXT_LENGTH) if depth else shown


def _container(value: Any, depth: int) -> str:
    kind = type(value)
    brackets: dict[Any, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}")}
    left, right = brackets.get(kind) or (f"{kind.__name__}(", ")")
    if depth >= DEEPEST:
        return f"{left}... {len(value)} elements{right}"
    # In one call of C, so that training cannot change it meanwhile.
    if isinstance(value, dict):
        some = list(islice(dict.items(value), MAX_ELEMENTS))
        parts = [f"{_brief(key, depth + 1)}: {_brief(part, depth + 1)}" for key, part in some]
    else:
        parts = [_brief(part, depth + 1) for part in list(islice(iter(value), MAX_ELEMENTS))]
    more = len(value) - len(parts)
    if more > 0:
        parts.append(f"... ({more} more)")
    comma = "," if kind is tuple and len(parts) == 1 else ""
    return f"{left}{', '.join(parts)}{comma}{right}"


def _head(torch: Any, value: Any) -> str:
    name = type(value).__name__
    words = ["tensor" if name == "Tensor" else name, f"shape={tuple(value.shape)}"]
    words += [f"dtype={str(value.dtype).removeprefix('torch.')}", f"device={value.device}"]
    if value.layout is not torch.strided:
        words.append(f"layout={str(value.layout).removeprefix('torch.')}")
    if value.grad_fn is not None:
        words.append(f"grad_fn={type(value.grad_fn).__name__}")
    elif value.requires_grad:
        words.append("requires_grad")
    return " ".join(words)


def _tensor(torch: Any, value: Any, beside: bool) -> str:
    return "\n  ".join([_head(torch, value), *_numbers(torch, value, beside)])


def _numbers(torch: Any, value: Any, beside: bool) -> list[str]:
    """Lines about the elements: their values, or why these are not read."""
    count = value.numel()
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
        return ["values not read: not a plain tensor; print() shows it"]
    if count == 0:
        return ["no values"]
    if value.device.type == "meta":
        return ["no values on the meta device"]
    if beside and value.device.type != "cpu" and count > MAX_COPIED:
        return [
            f"values not read: of a tensor of {_count(count)} elements on a device that would wait for training's "
            "kernels; --at step reads them between two steps"
        ]
    with torch.no_grad():
        value = value.detach()
        if value.device.type != "cpu" and count <= MAX_COPIED:
            value = value.cpu()
        first = value.reshape(-1) if count <= CHUNK else _first(value)
        values = [_number(each) for each in first[:MAX_VALUES].tolist()]
        if count == 1:
            return [f"value {values[0]}"]
        lines = []
        if count > MAX_REDUCED:
            lines.append(f"min, mean, max not computed: {_count(count)} elements")
        elif value.dtype is torch.bool:
            lines.append(f"true {_count(int(value.sum()))} of {_count(count)}")
        elif not value.dtype.is_complex:
            lines.append(_statistics(torch, value))
        more = ", ..." if count > MAX_VALUES else ""
        return [*lines, f"values [{', '.join(values)}{more}]"]


def _first(value: Any) -> Any:
    """The first elements of a large tensor, without copying it."""
    while value.dim() > 1:
        if value.shape[0] > 1 and value[0].numel() < MAX_VALUES:
            return value[:MAX_VALUES].reshape(-1)
        value = value[0]
    return value


def _statistics(torch: Any, value: Any) -> str:
    least: float | None = None
    most: float | None = None
    total, finite, nans, infinite = 0.0, 0, 0, 0
    rows = max(1, CHUNK // max(1, value.numel() // value.shape[0]))
    for part in value.split(rows):
        if value.dtype.is_floating_point:
            part = part.float() if part.element_size() < 4 else part
            good = torch.isfinite(part)
            number = int(good.sum())
            if number != part.numel():
                bad = int(torch.isnan(part).sum())
                nans, infinite = nans + bad, infinite + part.numel() - number - bad
                part = part[good]
        else:
            number = part.numel()
        if number:
            low, high = (bound.item() for bound in torch.aminmax(part))
            least, most = low if least is None else min(least, low), high if most is None else max(most, high)
            total, finite = total + float(part.sum(dtype=torch.float64)), finite + number
    words = []
    if least is not None:
        words.append(f"min {_number(least)}  mean {_number(total / finite)}  max {_number(most)}")
        if nans or infinite:
            words[0] += " (of the finite ones)"
    if value.dtype.is_floating_point:
        words.append(f"nan {_count(nans)}  inf {_count(infinite)}")
    return "  ".join(words)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _count(number: int) -> str:
    return f"{number:,}"


def _parameters(module: Any) -> tuple[int, int, set[str], set[str]]:
    """Elements of a module's parameters, those that are trained, and their types and devices; shared ones once.
    Reads attributes and calls no method of the user's."""
    seen: set[int] = set()
    every = trained = 0
    dtypes: set[str] = set()
    devices: set[str] = set()
    for part in _parts(module):
        for parameter in list(part.__dict__.get("_parameters", {}).values()):
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            try:
                number = parameter.numel()
            except (RuntimeError, ValueError):
                continue  # a lazy parameter, which has no shape yet
            every += number
            trained += number if parameter.requires_grad else 0
            dtypes.add(str(parameter.dtype).removeprefix("torch."))
            devices.add(str(parameter.device))
    return every, trained, dtypes, devices


def _parts(module: Any) -> list[Any]:
    """A module and everything below it, each once."""
    parts, seen, pending = [], set(), [module]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        parts.append(one)
        pending += [child for child in one.__dict__.get("_modules", {}).values() if child is not None]
    return parts


def _module(torch: Any, module: Any) -> str:
    every, trained, dtypes, devices = _parameters(module)
    parts = _parts(module)
    buffers = {
        id(buffer): buffer.numel()
        for part in parts
        for buffer in list(part.__dict__.get("_buffers", {}).values())
        if buffer is not None
    }
    words = [type(module).__name__, "in training mode" if module.training else "in evaluation mode"]
    words[1] += _otherwise(parts, module.training)
    trains = "all trained" if trained == every else f"{_count(trained)} of them trained"
    about = f"{_count(every)} parameters ({trains})" if every else "no parameters"
    about += "".join(f", {'/'.join(sorted(names))}" for names in (dtypes, devices) if names)
    if buffers:
        about += f", {_count(sum(buffers.values()))} in buffers"
    lines = [", ".join(words), f"  {about}"]
    omitted = _tree(module, 1, lines)
    if omitted:
        lines.append(f"  ... ({omitted} more modules; print() shows them all)")
    return "\n".join(lines)


def _otherwise(parts: list[Any], training: bool) -> str:
    other = sum(part.training is not training for part in parts)
    return f" ({other} of its {len(parts)} modules not)" if other else ""


def _tree(module: Any, depth: int, lines: list[str]) -> int:
    """Adds a line for each child, up to MAX_LINES. Returns the number of modules below `module` that got no line."""
    omitted = 0
    for name, child in list(module.__dict__.get("_modules", {}).items()):
        if child is None:
            continue
        if depth > DEEPEST or len(lines) >= MAX_LINES:
            omitted += len(_parts(child))
            continue
        own = child.extra_repr() if type(child).__module__.startswith("torch.nn.") else ""
        every = _parameters(child)[0]
        number = f"  {_count(every)} parameters" if every else ""
        lines.append(f"{'  ' * depth}{name}: {type(child).__name__}({own[:100]}){number}")
        omitted += _tree(child, depth + 1, lines)
    return omitted
