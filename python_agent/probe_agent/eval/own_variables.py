"""Names of the program that a snippet assigns in vain: the assignment makes a variable of the snippet's own."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

#: Types whose `+=` makes a new value, and does not change the one that the program has.
_VALUES = (int, float, complex, bool, str, bytes, tuple, frozenset)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def assignments(tree: ast.Module) -> dict[str, bool]:
    """The names that a snippet assigns outside of functions and does not read, or counts up (True)."""
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    found: dict[str, bool] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, _SCOPES))
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = True
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id not in read:
                    found.setdefault(target.id, False)
    return found


def in_vain(assigned: dict[str, bool], names: Mapping[str, Any]) -> str | None:
    """What a person is told where the program has variables of these names, which stay as they were. None where it has none."""
    stay = [name for name, counts in assigned.items() if name in names and (not counts or type(names[name]) in _VALUES)]
    if not stay:
        return None
    return (
        f"{', '.join(stay)} of the program {'stays as it was' if len(stay) == 1 else 'stay as they were'}: an assignment "
        "in a snippet makes a variable of its own (attributes and items of the program's objects can be set)"
    )
