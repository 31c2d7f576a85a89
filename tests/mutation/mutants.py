"""Mutants of a module: its syntax tree with one thing changed that a test ought to notice.

What is changed: comparisons (at their boundary, and turned round), conditions (each operand of `and` and `or` left
out, `not` left out, taken and never taken), arithmetic, whole numbers, min and max, any and all; statements that do
something are left out. Not changed: texts, annotations, asserts, and what runs at import alone, such as tables.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Slot = tuple[Any, Any]
"""A list or the `__dict__` of a node, and the key in it under which another node stands."""


@dataclass(frozen=True)
class Mutant:
    """`number` among those of its module; `function` is the qualified name of what it is in, `module` at the top."""

    number: int
    line: int
    function: str
    before: str
    after: str


@dataclass(frozen=True)
class _Edit:
    line: int
    function: str
    slot: Slot
    new: ast.AST
    shown: Slot
    """What to show of it: a number alone says little, so for one it is what that stands in."""


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module's source."""
    found = []
    for number, edit in enumerate(_edits(ast.parse(source), "", None)):
        before = _text(edit.shown)
        container, key = edit.slot
        old, container[key] = container[key], edit.new
        after = _text(edit.shown)
        container[key] = old
        found.append(Mutant(number, edit.line, edit.function or "module", before, after))
    return found


def mutated(source: str, number: int) -> ast.Module:
    """The syntax tree of one of them."""
    tree = ast.parse(source)
    for each, edit in enumerate(_edits(tree, "", None)):
        if each == number:
            container, key = edit.slot
            container[key] = edit.new
            return ast.fix_missing_locations(tree)
    raise IndexError(f"there is no mutant {number}")


def _text(slot: Slot) -> str:
    container, key = slot
    lines = ast.unparse(container[key]).strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} …"


_LEFT_ALONE = (ast.Assert, ast.Import, ast.ImportFrom, ast.arguments, ast.Global, ast.Nonlocal)
_ANNOTATIONS = ("annotation", "returns", "decorator_list", "bases", "type_params")

BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


def _edits(node: ast.AST, function: str, parent: Slot | None) -> Iterator[_Edit]:
    """The edits inside a node, in the order of the source. Each is to be made while the tree is as it was."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}" if function else node.name
    for slot in _slots(node):
        container, key = slot
        child = container[key]
        if isinstance(child, _LEFT_ALONE) or _is_text(child):
            continue
        line = getattr(child, "lineno", getattr(node, "lineno", 0))
        small = isinstance(child, ast.Constant) and isinstance(node, ast.expr | ast.Assign | ast.AugAssign | ast.Return)
        for new in _instead(child):
            yield _Edit(line, function, slot, new, parent if small and parent else slot)
        yield from _edits(child, function, slot)


def _slots(node: ast.AST) -> Iterator[Slot]:
    for field, value in ast.iter_fields(node):
        if field in _ANNOTATIONS or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        if isinstance(value, list):
            yield from ((value, index) for index, each in enumerate(value) if isinstance(each, ast.AST))
        elif isinstance(value, ast.AST):
            yield node.__dict__, field


def _is_text(node: ast.AST) -> bool:
    """A docstring, or text put together for a reader."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.Expr(value=value) | ast.AugAssign(value=value):
            return _is_text(value)
        case ast.BinOp(op=ast.Add(), left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return _is_text(left) or _is_text(right)
        case ast.BoolOp(values=values):
            return any(map(_is_text, values))
    return False


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for index, op in enumerate(ops):
                for table in (BOUNDARY, OPPOSITE):
                    if type(op) in table:
                        yield ast.Compare(left, [*ops[:index], table[type(op)](), *ops[index + 1 :]], comparators)
            for index, (op, named) in enumerate(zip(ops, comparators, strict=True)):
                if isinstance(op, ast.In | ast.NotIn) and isinstance(named, ast.Tuple) and len(named.elts) > 1:
                    for one in range(len(named.elts)):
                        fewer = ast.Tuple([*named.elts[:one], *named.elts[one + 1 :]], ast.Load())
                        yield ast.Compare(left, ops, [*comparators[:index], fewer, *comparators[index + 1 :]])
        case ast.BoolOp(op=op, values=values):
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLED:
            yield ast.Call(ast.Name(CALLED[name], ast.Load()), args, keywords)
        case ast.If(test=test, body=body, orelse=orelse):
            if not isinstance(test, ast.Constant):
                yield ast.If(ast.Constant(True), body, orelse)
                yield ast.If(ast.Constant(False), body, orelse)
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.comprehension(target=target, iter=iter_, ifs=ifs) if ifs:
            for index in range(len(ifs)):
                yield ast.comprehension(target, iter_, [*ifs[:index], *ifs[index + 1 :]], node.is_async)
        case ast.AugAssign(target=target, op=op, value=value):
            if type(op) in ARITHMETIC:
                yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)
            yield ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break() | ast.Delete(targets=[ast.Subscript()]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
