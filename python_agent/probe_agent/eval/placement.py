"""Decides from a snippet's syntax tree where it runs, before it runs.

Reading what training uses is done *beside* it. Whatever may change that, or run code of its objects, is done *between
two steps*: calls of anything reached from live objects, live objects given to functions, changes of them, collectives.
The tree is walked in the order in which it would run, knowing of each name whose value it is (:mod:`values`); loops are
walked until nothing new is learned, branches are joined, functions are walked with everything that was ever assigned.
Code that is not understood runs between two steps.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from probe_agent._native import At
from probe_agent.eval import calls, values
from probe_agent.eval.policy import BetweenSteps, words
from probe_agent.eval.values import LIBRARY, LIVE, OWN, UNKNOWN, AbstractValue, holding, live, own


class Placement(NamedTuple):
    """Where a snippet runs (`NOW`: beside training, `STEP`: between two steps), and the reason in words."""

    at: At
    why: str


def place(tree: ast.Module, names: dict[str, Any]) -> Placement:
    """Where `tree` belongs, among the names that the training code sees (:func:`namespace.snapshot`)."""
    try:
        _Walk(names).module(tree)
    except BetweenSteps as found:
        return Placement(At.STEP, str(found))
    except RecursionError:
        return Placement(At.STEP, "it is nested too deeply to be understood")
    return Placement(At.NOW, "it only reads")


class _Walk:
    """One walk over a snippet. `env` is what its own names stand for at this point."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.env: dict[str, AbstractValue] = {}
        self.ever: dict[str, AbstractValue] = {}
        self.deferred: list[tuple[ast.arguments, list[ast.stmt]]] = []

    def module(self, tree: ast.Module) -> None:
        self.block(tree.body)
        while self.deferred:
            arguments, body = self.deferred.pop()
            self.env = dict(self.ever)
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            for argument in filter(None, every):
                self.env[argument.arg] = live()
            self.block(body)

    # Names

    def lookup(self, name: str) -> AbstractValue:
        found = self.env.get(name) or values.of_name(name, self.names)
        # The name is unknown: a NameError when the snippet runs, and no effect before.
        return found or own()

    def bind(self, name: str, value: AbstractValue) -> None:
        self.env[name] = value
        self.ever[name] = self.ever[name].join(value) if name in self.ever else value

    def assign(self, target: ast.expr, value: AbstractValue) -> None:
        """Gives `target` a value, or finds that this changes something live."""
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, holding([value], list))
        elif isinstance(target, (ast.Tuple, ast.List)):
            part = self.part(value, target)
            for each in target.elts:
                self.assign(each, part)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            self.changed(target.value, target)
            if isinstance(target, ast.Subscript):
                self.expression(target.slice)
            if value.whose == LIVE:
                self.now_holds(target.value)
        else:
            raise BetweenSteps(f"{words(target)} is assigned to")

    def part(self, value: AbstractValue, node: ast.AST) -> AbstractValue:
        if value.whose == LIVE and value.known is UNKNOWN:
            return live()
        part = values.element(value)
        if part is None:
            raise BetweenSteps(f"{words(node)} takes apart a live object, which may run its code")
        return part

    def changed(self, node: ast.expr, target: ast.AST) -> None:
        """`node` is about to be changed."""
        value = self.expression(node)
        if value.whose == LIBRARY:
            raise BetweenSteps(f"changes {words(target)}, which training may use too")
        if value.whose == LIVE and not value.fresh:
            raise BetweenSteps(f"changes {words(target)}, which is reached from a live object")

    def now_holds(self, node: ast.expr) -> None:
        """Notes that something live was put into the value of `node`: values that are read from there may be live."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if isinstance(node, ast.Name) and node.id in self.env:
            before = self.env[node.id]
            self.bind(node.id, AbstractValue(LIVE, type=before.type, fresh=before.fresh, function=before.function))

    # Statements

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            walk = getattr(self, f"do_{type(statement).__name__}", None)
            if walk is None:
                raise BetweenSteps(f"'{words(statement)}' is not understood")
            walk(statement)

    def branches(self, *bodies: list[ast.stmt]) -> None:
        before, after = dict(self.env), []
        for body in bodies:
            self.env = dict(before)
            self.block(body)
            after.append(self.env)
        self.env = self.merged(after)

    def merged(self, environments: list[dict[str, AbstractValue]]) -> dict[str, AbstractValue]:
        merged: dict[str, AbstractValue] = {}
        for name in {name for environment in environments for name in environment}:
            for environment in environments:
                value = environment.get(name) or values.of_name(name, self.names)
                if value is not None:
                    merged[name] = merged[name].join(value) if name in merged else value
        return merged

    def loop(self, body: list[ast.stmt], orelse: list[ast.stmt], each: Any = None) -> None:
        for _ in range(20):
            before = dict(self.env)
            if each is not None:
                each()
            self.block(body)
            self.env = self.merged([before, self.env])
            if all(name in before and value.same(before[name]) for name, value in self.env.items()):
                return self.branches([], orelse)
        raise BetweenSteps("its loops are too tangled to be understood")

    def do_Expr(self, node: ast.Expr) -> None:
        self.expression(node.value)

    def do_Assign(self, node: ast.Assign) -> None:
        value = self.expression(node.value)
        for target in node.targets:
            self.assign(target, value)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.expression(node.annotation)
        if node.value is not None:
            self.assign(node.target, self.expression(node.value))

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        value = self.expression(node.value)
        if isinstance(node.target, ast.Name):
            before = self.lookup(node.target.id)
            if before.whose == LIVE and not before.fresh:
                raise BetweenSteps(f"changes {node.target.id}, which is a live object")
            self.bind(node.target.id, holding([before, value], before.type))
        else:
            self.assign(node.target, value)

    def do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.env.pop(target.id, None)
            elif isinstance(target, (ast.Attribute, ast.Subscript)):
                self.changed(target.value, target)
            else:
                raise BetweenSteps(f"'{words(node)}' is not understood")

    def do_If(self, node: ast.If) -> None:
        self.expression(node.test)
        self.branches(node.body, node.orelse)

    def do_While(self, node: ast.While) -> None:
        self.loop(node.body, node.orelse, lambda: self.expression(node.test))

    def do_For(self, node: ast.For) -> None:
        part = self.iterated(node.iter)
        self.loop(node.body, node.orelse, lambda: self.assign(node.target, part))

    def do_With(self, node: ast.With) -> None:
        for entered in node.items:
            value = self.expression(entered.context_expr)
            if value.whose == LIVE:
                raise BetweenSteps(f"enters {words(entered.context_expr)}, which is a live object")
            if entered.optional_vars is not None:
                self.assign(entered.optional_vars, value)
        self.block(node.body)

    def do_Try(self, node: Any) -> None:
        before = dict(self.env)
        self.block(node.body)
        # An exception may come after any statement: handlers see what was before, or what is now.
        self.env = self.merged([before, self.env])
        self.branches(node.orelse, *([self.named_handler(handler) for handler in node.handlers]))
        self.block(node.finalbody)

    do_TryStar = do_Try

    def named_handler(self, handler: ast.ExceptHandler) -> list[ast.stmt]:
        if handler.type is not None:
            self.expression(handler.type)
        if handler.name is not None:
            # A live object's exception carries its frames, but only reading it does no harm.
            self.bind(handler.name, live())
        return handler.body

    def do_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname is not None:
                self.bind(alias.asname, values.imported(alias.name))
            else:
                top = alias.name.partition(".")[0]
                self.bind(top, values.imported(top))

    def do_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = values.imported(node.module or "")
        for alias in node.names:
            if alias.name == "*" or node.level:
                raise BetweenSteps(f"'{words(node)}' is not understood")
            self.bind(alias.asname or alias.name, values.attribute(module, alias.name))

    def do_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            calls.call(self, ast.Call(decorator, [], []), decorator)
        self.defaults(node.args)
        self.deferred.append((node.args, node.body))
        self.bind(node.name, AbstractValue(OWN, function=True))

    def do_ClassDef(self, node: ast.ClassDef) -> None:
        for base in [*node.bases, *(keyword.value for keyword in node.keywords)]:
            if self.expression(base).whose == LIVE:
                raise BetweenSteps(f"makes a class of {words(base)}, which is a live object")
        if node.decorator_list:
            raise BetweenSteps(f"'{words(node.decorator_list[0])}' changes a class")
        outer = self.env
        self.env = dict(outer)
        self.block(node.body)
        self.env = outer
        self.bind(node.name, AbstractValue(OWN, function=True))

    def defaults(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self.expression(default)

    def do_Assert(self, node: ast.Assert) -> None:
        self.expression(node.test)
        if node.msg is not None:
            self.expression(node.msg)

    def do_Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            if part is not None:
                self.expression(part)

    def do_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.expression(node.value)

    def do_nothing(self, node: ast.stmt) -> None:
        """Pass, break, continue, global, nonlocal."""

    do_Pass = do_Break = do_Continue = do_Global = do_Nonlocal = do_nothing

    # Expressions

    def expression(self, node: ast.expr) -> AbstractValue:
        """What a node's value is, having walked everything that makes it."""
        look = getattr(self, f"of_{type(node).__name__}", None)
        if look is None:
            raise BetweenSteps(f"'{words(node)}' is not understood")
        value: AbstractValue = look(node)
        return value

    def iterated(self, node: ast.expr) -> AbstractValue:
        """What a loop over `node` gives, one at a time."""
        part = values.element(self.expression(node))
        if part is None:
            raise BetweenSteps(f"goes through {words(node)}, which may run its code")
        return part

    def of_Constant(self, node: ast.Constant) -> AbstractValue:
        return AbstractValue(OWN, known=node.value)

    def of_Name(self, node: ast.Name) -> AbstractValue:
        return self.lookup(node.id)

    def of_NamedExpr(self, node: ast.NamedExpr) -> AbstractValue:
        value = self.expression(node.value)
        self.assign(node.target, value)
        return value

    def of_Attribute(self, node: ast.Attribute) -> AbstractValue:
        return values.attribute(self.expression(node.value), node.attr)

    def of_Subscript(self, node: ast.Subscript) -> AbstractValue:
        return values.item(self.expression(node.value), self.expression(node.slice))

    def of_Slice(self, node: ast.Slice) -> AbstractValue:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.expression(part)
        return own(slice)

    def of_Starred(self, node: ast.Starred) -> AbstractValue:
        return self.iterated(node.value)

    def of_Tuple(self, node: ast.Tuple) -> AbstractValue:
        return holding([self.expression(part) for part in node.elts], tuple)

    def of_List(self, node: ast.List) -> AbstractValue:
        return holding([self.expression(part) for part in node.elts], list)

    def of_Set(self, node: ast.Set) -> AbstractValue:
        return holding([self.expression(part) for part in node.elts], set)

    def of_Dict(self, node: ast.Dict) -> AbstractValue:
        parts = [self.expression(part) for part in [*node.keys, *node.values] if part is not None]
        return holding(parts, dict)

    def of_BinOp(self, node: ast.BinOp) -> AbstractValue:
        left, right = self.expression(node.left), self.expression(node.right)
        if isinstance(node.op, ast.Mod) and left.type is str:
            return own(str)
        return holding([left, right], left.type if left.type is right.type else None)

    def of_UnaryOp(self, node: ast.UnaryOp) -> AbstractValue:
        return holding([self.expression(node.operand)], None)

    def of_BoolOp(self, node: ast.BoolOp) -> AbstractValue:
        first, *rest = (self.expression(part) for part in node.values)
        for part in rest:
            first = first.join(part)
        return first

    def of_Compare(self, node: ast.Compare) -> AbstractValue:
        for part in (node.left, *node.comparators):
            self.expression(part)
        return own()

    def of_IfExp(self, node: ast.IfExp) -> AbstractValue:
        self.expression(node.test)
        return self.expression(node.body).join(self.expression(node.orelse))

    def of_JoinedStr(self, node: ast.JoinedStr) -> AbstractValue:
        for part in node.values:
            self.expression(part)
        return own(str)

    def of_FormattedValue(self, node: ast.FormattedValue) -> AbstractValue:
        self.expression(node.value)
        if node.format_spec is not None:
            self.expression(node.format_spec)
        return own(str)

    def of_Lambda(self, node: ast.Lambda) -> AbstractValue:
        self.defaults(node.args)
        self.deferred.append((node.args, [ast.Expr(node.body)]))
        return AbstractValue(OWN, function=True)

    def of_Yield(self, node: ast.Yield) -> AbstractValue:
        if node.value is not None:
            self.expression(node.value)
        return own()

    def comprehension(
        self, generators: list[ast.comprehension], parts: list[ast.expr], kind: type | None
    ) -> AbstractValue:
        outer = self.env
        self.env = dict(outer)
        for generator in generators:
            if generator.is_async:
                raise BetweenSteps("an asynchronous comprehension is not understood")
            self.assign(generator.target, self.iterated(generator.iter))
            for condition in generator.ifs:
                self.expression(condition)
        made = holding([self.expression(part) for part in parts], kind)
        self.env = outer
        return made

    def of_ListComp(self, node: ast.ListComp) -> AbstractValue:
        return self.comprehension(node.generators, [node.elt], list)

    def of_SetComp(self, node: ast.SetComp) -> AbstractValue:
        return self.comprehension(node.generators, [node.elt], set)

    def of_DictComp(self, node: ast.DictComp) -> AbstractValue:
        return self.comprehension(node.generators, [node.key, node.value], dict)

    def of_GeneratorExp(self, node: ast.GeneratorExp) -> AbstractValue:
        return self.comprehension(node.generators, [node.elt], None)

    def of_Call(self, node: ast.Call) -> AbstractValue:
        return calls.call(self, node, node.func)
