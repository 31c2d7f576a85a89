"""The mutator: what it changes, and what it leaves alone."""

import ast

import pytest

from tests.mutation.mutants import mutants_of, mutated
from tests.mutation.run import UNEXPLAINED, Outcome, key_of, page_of, reasons_in


def changes(source):
    return [(mutant.before, mutant.after) for mutant in mutants_of(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a in ('x', 'y')", ["a not in ('x', 'y')", "a in ('y',)", "a in ('x',)"]),
        ("a and b and c", ["b and c", "a and c", "a and b"]),
        ("not a", ["a"]),
        ("a - b", ["a + b"]),
        ("f(3)", ["pass", "f(4)"]),
        ("min(a, b)", ["pass", "max(a, b)"]),
        ("[a for a in b if c]", ["for a in b"]),
        ("a if b else c", ["a", "c"]),
        ("if a: f", ["if True: …", "if False: …"]),
        ("a.b = c", ["pass"]),
        ("a += b", ["a -= b", "pass"]),
    ],
)
def test_what_is_changed(source, expected):
    assert [after for _, after in changes(source)] == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A text with 3 words."""',
        "f'{a + 1}'",
        "a = 'many' if b > 1 else 'one'",
        "a += f'{b}'",
        "assert a > 1",
        "def f(a: int = 3) -> 'x < y': ...",
        "a: Literal[3]",
        "from a import b",
        "@f(3)\nclass A(B, frozen=True): ...",
    ],
)
def test_what_is_left_alone(source):
    assert changes(source) == []


SOURCE = """
class Counter:
    def spare(self, used):
        if used > self.most:
            return 0
        return self.most - used
"""


def test_each_mutant_is_another_module_and_compiles():
    mutants = mutants_of(SOURCE)
    texts = {ast.unparse(mutated(SOURCE, mutant.number)) for mutant in mutants}
    assert len(texts) == len(mutants) == 6
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    assert {mutant.function for mutant in mutants} == {"Counter.spare"}
    for mutant in mutants:
        compile(mutated(SOURCE, mutant.number), "counter.py", "exec")


def test_the_page_keeps_the_reasons_that_it_has():
    first, second, *_ = mutants_of(SOURCE)
    outcomes = [Outcome("sim/counter.py", 6, [first, second])]
    reasons = {key_of(first): "Nobody can tell."}
    page = page_of(outcomes, reasons)
    assert "| sim/counter.py | 6 | 4 | 2 |" in page
    assert reasons_in(page) == {key_of(first): "Nobody can tell.", key_of(second): UNEXPLAINED}
    assert page_of(outcomes, reasons_in(page)) == page
