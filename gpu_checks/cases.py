"""Which cases are replayed: the kept ones, given files, and a few of our own that go where the kept ones may not."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sim.case import Budget, Case, ClientView, Limit, ServerSettings, Session, Turn
from sim.corpus import files, read
from sim.expected import numbers_in
from sim.faults import (
    AbortAll,
    AbortRequest,
    AddReplica,
    AfterSent,
    AfterTokens,
    CancelClient,
    ClearSticky,
    Fault,
    RemoveReplica,
    WeightUpdate,
)

CORPUS = Path(__file__).parent.parent / "properties" / "corpus"

DEFERRED, PINNED = "reference:deferred", "reference:pinned"

BUDGET = Budget(prompt_length=64, response_length=256, max_model_len=2048)
"""verl's 2048/8192, scaled down by 32."""


@dataclass(frozen=True)
class KeptCase:
    """A case with the invariants that each SUT is kept as violating (by the SUT's key)."""

    name: str
    case: Case
    expected: dict[str, list[str]]


def load(paths: Iterable[Path]) -> list[KeptCase]:
    """The cases in files and folders. A bare Case is kept for no SUT. Raises `CaseError`."""
    entries = [(path.stem, read(path)) for path in files(paths)]
    return [
        KeptCase(name, entry.case, {sut: numbers_in(verdicts) for sut, verdicts in entry.expected.items()})
        for name, entry in entries
    ]


def aborts_after(*tokens: int, session: int = 0, pause_s: float = 0.0) -> tuple[Fault, ...]:
    """Replica 0 aborts everything each time the session has decoded so much."""
    return tuple(AbortAll(AfterTokens(session, each), 0, pause_s) for each in tokens)


EVERY_62 = (62, 124, 186, 248)


def overrun(prompt_tokens: int) -> Case:
    """The overrun of verl PR 7207, scaled down."""
    return Case(BUDGET, (Session(prompt_tokens),), aborts_after(*EVERY_62))


OVERRUNS = {3: 317, 16: 304, 60: 260}
"""Decoded tokens for each prompt length when the server's default sets the limit; pinned it is 256 each time."""

FULL_SIZE_TOKENS = 2_500
"""A run that decodes more takes too long on a CPU, and is left to --full-size."""


def own_cases() -> Iterable[KeptCase]:
    """Each for a rule that the kept ones leave out."""
    clean: list[str] = []
    yield KeptCase(
        "weight-updates",
        Case(
            BUDGET,
            (Session(16), Session(20, turns=(Turn(40, tool_tokens=10, tool_time_s=0.5), Turn()))),
            tuple(WeightUpdate(AfterTokens(0, tokens), pause_s=0.5) for tokens in (30, 60, 100)),
        ),
        {PINNED: clean},
    )
    yield KeptCase(
        "replicas-come-and-go",
        Case(
            BUDGET,
            tuple(Session(5 + extra, turns=(Turn(30), Turn(20))) for extra in range(4)),
            (
                WeightUpdate(AfterTokens(0, 10), pause_s=0.5, leaving=(1,)),
                AbortRequest(AfterTokens(1, 20), session=1),
                RemoveReplica(AfterTokens(2, 15), replica=0),
                ClearSticky(AfterTokens(2, 25)),
                AddReplica(AfterTokens(2, 40), replica=0),
                CancelClient(AfterTokens(3, 25), session=3),
            ),
            replicas=2,
        ),
        {PINNED: clean},
    )
    yield KeptCase(
        "no-gate",
        Case(
            BUDGET,
            (Session(16), Session(9)),
            (AbortAll(AfterTokens(0, 50), 0, pause_s=2.0), AbortAll(AfterSent(0, 2), 0, pause_s=1.0)),
            server=ServerSettings(submission_gate=False),
        ),
        {DEFERRED: ["B1"], PINNED: clean},
    )
    yield KeptCase("few-tokens", Case(Budget(4, 3, 64), (Session(1),), aborts_after(2)), {DEFERRED: ["B1"]})
    yield KeptCase("aborted-as-sent", Case(BUDGET, (Session(16),), (AbortAll(AfterSent(0, 1), 0),)), {PINNED: clean})
    yield KeptCase(
        "stops-by-itself",
        Case(BUDGET, (Session(16, turns=(Turn(1), Turn(200), Turn(300))),), aborts_after(100, 300)),
        {PINNED: clean},
    )
    yield KeptCase(
        "limits-spelled",
        Case(
            Budget(64, 256, max_model_len=512),
            (
                Session(16, limit=Limit("both", 10)),
                Session(4, limit=Limit("max_new_tokens", 0)),
                Session(4, limit=Limit("max_tokens", 7)),
                Session(300, limit=Limit("max_tokens", 500)),
            ),
        ),
        {PINNED: clean},
    )
    yield KeptCase(
        "no-limit-in-config",
        Case(
            Budget(64, 256, max_model_len=2048, client_view=ClientView(None)), (Session(16),), aborts_after(*EVERY_62)
        ),
        {PINNED: clean},
    )
    yield KeptCase(
        "full-context", Case(Budget(64, 256, max_model_len=128), (Session(100), Session(128))), {PINNED: clean}
    )
    yield KeptCase(
        "no-partial-rollout",
        Case(BUDGET, (Session(16),), aborts_after(62), partial_rollout=False),
        {PINNED: clean},
    )
