"""The page: complete, well-formed, self-contained, and safe with whatever a case is called."""

from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from sim.case import Budget, Case, Schedule, Session, Turn
from sim.cli.main import main
from sim.faults import AddReplica, AfterSent, AtTime, CancelClient, WeightUpdate
from sim.report.page import page
from sim.sut.registry import load_sut
from sim.verdicts import judged

CASE = Case(
    Budget(8, 10, 64),
    (Session(2), Session(3, (Turn(4, 2, 0.1), Turn(None)), 0.02)),
    (WeightUpdate(AtTime(0.045)), CancelClient(AtTime(3.0), 1)),
    replicas=2,
    schedule=Schedule("random", 1),
)
VOID = {"meta", "rect", "line", "path", "img", "br"}


class Checker(HTMLParser):
    """Fails on tags that do not match; collects the text and what is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.loads = [], [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def checked(text):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    assert not checker.loads, "a page that needs nothing else"
    return " ".join("".join(checker.text).split())


def run(case=CASE, sut="reference:deferred"):
    return judged(case, load_sut(sut))


def test_it_tells_what_the_terminal_tells():
    what = run()
    text = checked(page(what, "a case"))
    assert "B1" in text
    assert "10 = default min(10, 8 + 10 − 2 = 16)" in text
    assert "overrun" in text
    assert what.trace.digest() in text
    assert f"{len(what.deviations):,} deviations" in text
    assert "weight_update (pause_s 1) at 0.045 s" in text


def test_the_messages_around_a_wrong_count_are_there_too():
    case = Case(Budget(8, 8), (Session(1),), (AddReplica(AfterSent(0, 1), 0),))
    text = page(run(case, "reference:zeroes-count"), "a case")
    assert "Messages to the balancer" in checked(text)
    assert "<td>R3</td><td>1</td><td>0 s</td><td>add_servers</td><td></td><td>0</td><td>0</td><td>1</td>" in text
    assert "Messages to the balancer" not in checked(page(run(case, "reference:pinned"), "a case"))


@pytest.mark.parametrize("sut", ["reference:pinned", "reference:stuck-gate", "reference:loses-tokens"])
def test_any_world_makes_a_page(sut):
    checked(page(run(sut=sut), "a case"))
    checked(page(run(Case(Budget(8, 10, 64), (Session(64),)), sut), "a case"))


def test_a_clean_world_says_so():
    text = checked(page(run(Case(Budget(8, 10, 64), (Session(2),)), "reference:pinned"), "a case"))
    assert "No invariant is violated." in text
    assert "not a race" in text


def test_names_are_escaped():
    text = page(run(), "<script>alert(1)</script>", "a & b <i>")
    assert "<script>" not in text
    assert "a &amp; b &lt;i&gt;" in text
    checked(text)


def test_show_writes_both_files(tmp_path):
    html, timeline = tmp_path / "case.html", tmp_path / "case.json"
    arguments = ["show", "properties/corpus/overrun-136.json", "--html", str(html), "--timeline", str(timeline)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert "1,912" in checked(html.read_text(encoding="utf-8"))
    assert timeline.read_text(encoding="utf-8").startswith('{"traceEvents"')
    bad = CliRunner().invoke(main, [*arguments[:2], "--html", str(tmp_path / "no" / "such.html")])
    assert bad.exit_code == 2
    assert "cannot be written" in bad.output
