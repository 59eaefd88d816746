"""What the parts of placement have in common: how one finds that a snippet belongs between two steps, and says so."""

from __future__ import annotations

import ast
from typing import Protocol

from probe_agent.eval.values import Value


class BetweenSteps(Exception):
    """Found something that must not run beside training; the words say what."""


class Walk(Protocol):
    """A walk over a snippet, as those see it that look at single calls."""

    def expression(self, node: ast.expr) -> Value:
        """The value of an expression; raises BetweenSteps where it must not run beside training."""

    def now_holds(self, node: ast.expr) -> None:
        """Something live was put into what `node` stands for."""


def words(node: ast.AST) -> str:
    """Source of a node, short."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."
