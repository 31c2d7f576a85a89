"""The words of a shell script: its simple commands with the line of each word, and what a word is made of.

shlex is of no use here: it forgets the line of a word and the quotes a `$` stood in.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!]")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


class RawWord(msgspec.Struct, frozen=True):
    """A word with its quotes still on, and the line it starts at."""

    text: str
    line: int


def split_commands(text: str, line: int = 1) -> Iterator[list[RawWord]]:
    """The simple commands of a script. An array's words come between `NAME=(` and `)`."""
    command: list[RawWord] = []
    word, word_line = "", line
    in_array = False
    heredocs: list[str] = []
    position, end = 0, len(text)

    def flush() -> None:
        nonlocal word
        if word:
            command.append(RawWord(word, word_line))
            word = ""

    while position < end:
        char = text[position]
        following = text[position + 1 : position + 2]
        if not word:
            word_line = line
        step = 1
        if char == "\\" and following == "\n":
            line, step = line + 1, 2
        elif char == "\\":
            word, step = word + char + following, 2
        elif char in "'\"`" or (char == "$" and following in ("(", "{", "'", '"')):
            step = _quoted(text, position)
            piece = text[position : position + step]
            word, line = word + piece, line + piece.count("\n")
        elif char == "#" and not word:
            newline = text.find("\n", position)
            step = (end if newline < 0 else newline) - position
        elif char in " \t\r":
            flush()
        elif char == "<" and (heredoc := _HEREDOC.match(text, position)):
            flush()
            heredocs.append(heredoc[2])
            step = heredoc.end() - position
        elif char in "<>" and following == "&":
            word, step = word + char + following, 2
        elif char == "(" and ASSIGNMENT.fullmatch(word):
            command.append(RawWord(word + "(", word_line))
            word, in_array = "", True
        elif char == ")" and in_array:
            flush()
            command.append(RawWord(")", line))
            in_array = False
        elif char in "\n;&|()":
            flush()
            if not (in_array and char == "\n"):
                yield command
                command = []
            if char == "\n":
                after = _after_heredocs(text, position + 1, heredocs)
                line, step = line + text.count("\n", position, after), after - position
                heredocs.clear()
        else:
            word += char
        position += step
    flush()
    yield command


def _after_heredocs(text: str, start: int, markers: list[str]) -> int:
    """Where the script goes on after the bodies of the here-documents that begin at `start`."""
    for marker in markers:
        body_end = re.compile(rf"^[ \t]*{re.escape(marker)}[ \t]*$", re.MULTILINE).search(text, start)
        start = body_end.end() if body_end else len(text)
    return start


def _quoted(text: str, start: int) -> int:
    """Length of the quoted or bracketed piece that begins at `start`; to the end of the text if it never closes."""
    position = start + (text[start] == "$")
    opening = text[position]
    closing = {"(": ")", "{": "}"}.get(opening, opening)
    depth = 1
    position += 1
    while position < len(text):
        here = text[position]
        if here == "\\" and opening != "'":
            position += 1
        elif _begins_piece(text, position, opening):
            position += _quoted(text, position) - 1
        elif here == closing:
            depth -= 1
            if depth == 0:
                return position + 1 - start
        elif here == opening:
            depth += 1
        position += 1
    return len(text) - start


def _begins_piece(text: str, position: int, opening: str) -> bool:
    """Whether a piece of its own begins here, inside one that `opening` began."""
    if opening == '"':
        return text.startswith(("$(", "${"), position)
    return opening in "({" and (text[position] == "'" or (text[position] == '"' and opening == "("))


def pieces(raw: str) -> Iterator[tuple[Literal["literal", "parameter"], str]]:
    """A raw word cut into literal text, unquoted, and `$…` pieces as they stand."""
    position = 0
    in_double = False
    while position < len(raw):
        char = raw[position]
        if char == '"':
            in_double = not in_double
            position += 1
        elif char == "'" and not in_double:
            length = _quoted(raw, position)
            yield "literal", raw[position + 1 : position + length - 1]
            position += length
        elif char == "\\":
            yield "literal", raw[position + 1 : position + 2]
            position += 2
        elif raw.startswith(("`", "$(", "${"), position):
            length = _quoted(raw, position)
            yield "parameter", raw[position : position + length]
            position += length
        elif char == "$" and (match := NAME.match(raw, position + 1)):
            yield "parameter", raw[position : match.end()]
            position = match.end()
        else:
            yield "literal", char
            position += 1


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: _quotient(a, b),
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
}


def _quotient(a: int, b: int) -> int:
    """Rounded towards 0, as a shell does; the remainder has the sign of the dividend."""
    rounded = abs(a) // abs(b)
    return rounded if (a < 0) == (b < 0) else -rounded


def calculate(expression: str, values: dict[str, str]) -> int | None:
    """Shell arithmetic over whole numbers; None for anything else."""
    text = re.sub(r"\$\{?(\w+)\}?", r"\1", expression).replace("/", "//")

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return int(values[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        raise ValueError(ast.dump(node))

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None
