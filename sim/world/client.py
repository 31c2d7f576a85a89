"""The client of a world: built by the system under test's factory, and observed turn by turn."""

import asyncio
from collections.abc import Iterable, Sequence
from inspect import isawaitable, iscoroutine
from pathlib import Path
from traceback import StackSummary, walk_tb
from typing import Any, cast

import msgspec

from sim.case import Case
from sim.events import TurnEnded, TurnStarted, spelled, without_addresses
from sim.registry import PluginError
from sim.servers.port import Clock
from sim.sut.framework import Returned, Sut
from sim.sut.interface import Client, Context, SutError, declared_by
from sim.tokens import Tokens, ids_as_runs, log_probs_as_runs
from sim.trace import MOST_RAISED_KEPT, Trace
from sim.transport import wire
from sim.transport.balancer_port import BalancerPort
from sim.transport.copies import copied
from sim.transport.handles import Handle
from sim.transport.wire import TurnInProgress, current_turn, fail_the_run
from sim.world.model import FakeModel
from sim.world.ports import Network

_OUR_FOLDERS = (str(Path(__file__).parent), str(Path(wire.__file__).parent))
"""Whose frames say nothing in a client's traceback."""

_SPELLED_CHARS = 60


class ObservedClient:
    """The client as the agent loop sees it; every turn is on the trace."""

    def __init__(
        self,
        case: Case,
        sut: Sut,
        client: Client,
        clock: Clock,
        trace: Trace,
        model: FakeModel,
        places: dict[int, TurnInProgress] | None,
    ) -> None:
        """`places`: where it keeps the last turn of each session, for who asks for it after its end."""
        self.takes_runs = takes_runs(client)
        self._case = case
        self._framework = sut.framework.name
        self._returned = sut.framework.returned
        self._client = client
        self._clock = clock
        self._trace = trace
        self._model = model
        self._places = places
        self._turns: dict[int, int] = {}
        """Turns begun, of the sessions that live."""

    async def generate(
        self, request_id: str, *, prompt_ids: Tokens, sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        place = current_turn.get()
        assert place is not None, "turns run in the context of a session"
        session, turn = place.session, self._turns.get(place.session, 0)
        self._turns[session] = turn + 1
        turns = self._case.session(session).turns
        self._model.begin_turn(session, len(prompt_ids), turns[min(turn, len(turns) - 1)].response_tokens)
        self._trace.add(TurnStarted(self._clock.now_ns, session, turn, len(prompt_ids), ids_as_runs(prompt_ids)))
        place = TurnInProgress(session, turn)
        current_turn.set(place)
        if self._places is not None:
            self._places[session] = place
        before = copied(sampling_params)
        try:
            call: Any = self._client.generate(
                request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **kwargs
            )
            if not isawaitable(call):
                raise TypeError(f"generate returned {_short(call)}, which cannot be awaited: async def is needed")
            output = await call
            self._end(session, turn, before, sampling_params, *self._read(output))
        except asyncio.CancelledError:
            self._end(session, turn, before, sampling_params, outcome="cancelled")
            raise
        except Exception as error:
            if len(self._trace.raised) < MOST_RAISED_KEPT:
                stack = StackSummary.extract(walk_tb(error.__traceback__), lookup_lines=False)
                theirs = [frame for frame in stack if not frame.filename.startswith(_OUR_FOLDERS)]
                self._trace.raised[session, turn] = StackSummary.from_list(theirs)
            text = spelled(error)
            if self._trace.factory_raised:
                text = f"the factory raised {text}"
            self._end(session, turn, before, sampling_params, outcome="error", error=text)
            raise
        return output

    def _read(self, output: Any) -> Returned:
        """What the client returned. Raises TypeError that says what it is and what is needed."""
        try:
            found = self._returned(output)
        except Exception as error:
            raise TypeError(f"generate returned {_short(output)}: {error}") from None
        if not isinstance(found, Returned):
            error = PluginError(
                f"framework {self._framework!r}, returned: it gave {_short(found)}; a Returned is needed"
            )
            self._clock.call_soon(fail_the_run, error)
            raise error
        return found

    def end_session(self, session: int) -> None:
        """Nothing more will be asked for it."""
        self._turns.pop(session, None)
        self._model.end_session(session)

    def _end(
        self,
        session: int,
        turn: int,
        before: dict[str, Any],
        after: dict[str, Any],
        ids: Sequence[int] = (),
        stop_reason: str | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
        log_probs: Iterable[Any] | None = None,
        outcome: Any = "ok",
        error: str | None = None,
    ) -> None:
        changed = None if before == after else without_addresses(f"{before} became {after}")
        runs = ids_as_runs(ids)
        self._trace.add(
            TurnEnded(
                self._clock.now_ns,
                session,
                turn,
                outcome,
                runs,
                stop_reason,
                min_version,
                max_version,
                changed,
                error,
                None if log_probs is None else log_probs_as_runs(log_probs),
            )
        )


def _short(value: object) -> str:
    text = without_addresses(repr(value))
    return text if len(text) <= _SPELLED_CHARS else f"{text[:_SPELLED_CHARS]}…"


def takes_runs(client: Any) -> bool:
    """Whether a client takes tokens as `sim.tokens` has them."""
    return getattr(client, "takes_runs", False) is True


class _NoClient:
    """In the place of a client whose factory raised over a config that is odd on purpose: so does each call."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._traceback = error.__traceback__

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise self._error.with_traceback(self._traceback)


class Parties:
    """The client of a world and its balancer. Raises `SutError` where the SUT's factory cannot be used.

    `factory_raised`: there is no client, since the factory raised over a config that is odd on purpose.
    """

    client: Client
    port: BalancerPort
    balancer: Handle

    def __init__(
        self, case: Case, sut: Sut, servers: dict[str, Handle], network: Network, urls: dict[str, str], loop: Any
    ) -> None:
        self.factory_raised = False
        self._urls = urls
        self._loop = loop
        self._case = case
        self._sut = sut
        self._servers = servers
        self._network = network
        self._registered: Handle | None = None
        self._has_built_in_balancer = False
        self.client = self._make_client()

    def declared(self) -> dict[str, str]:
        """The policies that are declared: a balancer's, then its client's, then those of the factory that has put them
        together, and before all of them what whoever runs it says. A balancer of its own knows nothing of the Case's
        `router.sticky`, and is sticky unless it says otherwise."""
        sut = self._sut
        said = declared_by(self.port.balancer, f"the balancer of SUT {sut.name!r}")
        said |= declared_by(self.client, f"the client of SUT {sut.name!r}")
        declared = {**sut.framework.policies, **said, **sut.declared, **sut.flags}
        if not (self._case.router.sticky or self._has_built_in_balancer or declared.get("routing") == "none"):
            declared.setdefault("sticky", "yes")
        return declared

    def _register(self, balancer: Any) -> Handle:
        self.port = BalancerPort(balancer, self._sut.framework.balancer, list(self._servers))
        self._registered = self.balancer = self._network.balancer_handle(self.port)
        self._has_built_in_balancer = False
        return self.balancer

    def _make_balancer(self, cls: type[Any]) -> Handle:
        return self._register(self._sut.framework.balancer.make(cls, dict(self._servers)))

    def _default_balancer(self) -> Handle:
        if self._registered is None:
            self._register(self._sut.framework.call("make_balancer", dict(self._servers), self._case.router))
            self._has_built_in_balancer = True
        return self.balancer

    def _built(self, case: Case) -> Any:
        config = self._sut.framework.call("make_config", case)
        return self._sut.factory(
            Context(config, self._servers, self._make_balancer, self._default_balancer, self._urls, self._loop)
        )

    def _make_client(self) -> Client:
        named = f"the factory of SUT {self._sut.name!r}"
        try:
            client = self._built(self._case)
        except PluginError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) or not self._suits_usual_config():
                raise SutError(f"{named} raised {type(error).__name__}: {error}") from error
            client = _NoClient(error)
            self.factory_raised = True
        if iscoroutine(client):
            client.close()
            raise SutError(f"{named} is an async def; a plain function that returns a client is needed")
        if isinstance(client, tuple) and len(client) == 2:
            client, balancer = client
            if balancer is not self._registered or self._registered is None:
                self._register(balancer)
        self._default_balancer()
        if not callable(getattr(client, "generate", None)):
            raise SutError(
                f"{named} returned {type(client).__name__}, which has no generate(); "
                f"a client or (client, balancer) is needed"
            )
        return cast(Client, client)

    def _suits_usual_config(self) -> bool:
        """Whether a factory that raised does not, once nothing in the client's config is odd on purpose."""
        budget = self._case.budget
        if budget.client_view is None:
            return False
        usual = msgspec.structs.replace(budget, client_view=None)
        try:
            self._built(msgspec.structs.replace(self._case, budget=usual))
        except (Exception, SystemExit):
            return False
        return True
