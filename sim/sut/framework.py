"""What makes a framework's own code run in a world: one record, filled in by the adapter in the framework's folder."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sim.case import Case, Limit, Router
from sim.engine.config import PauseMode
from sim.registry import PluginError, blame
from sim.servers.port import MakeOutput, MakeServer, RolloutServer
from sim.servers.server import SimulatedServer
from sim.settings import MAX_PARKED_S
from sim.sut.interface import Factory, SutError
from sim.transport.handles import Handle
from sim.transport.protocol import BalancerProtocol, RequestProtocol


class Returned(NamedTuple):
    """What a client's call returned: the token ids of the whole response, why it ended, the oldest and newest weight
    version that it names, and the log probabilities of its tokens."""

    token_ids: Sequence[int]
    stop_reason: str | None
    min_version: int | None
    max_version: int | None
    log_probs: Iterable[Any] | None = None


class TrainerCalls(Protocol):
    """How the framework's trainer calls a server, by its handle. Each call is under way when its future is returned."""

    def abort_all(self, server: Handle, *, reset_prefix_cache: bool, reject: bool) -> "asyncio.Future[Any]": ...

    def pause(self, server: Handle, mode: PauseMode, *, clear_cache: bool) -> "asyncio.Future[Any]": ...

    def resume(self, server: Handle) -> "asyncio.Future[Any]": ...

    def set_weight_version(self, server: Handle, version: int) -> "asyncio.Future[Any]": ...

    def abort_request(self, server: Handle, request_id: str) -> "asyncio.Future[Any]": ...


@dataclass(frozen=True)
class Framework:
    """A framework by name.

    `make_config(case)`: the config that its client is given, as the Case has it see its own.
    `budget_setting`: what that config calls the length of a response; a client that has to do without it says so.
    `make_params(limit)`: the sampling params of a caller that sets this limit, or none.
    `requests`, `trainer`, `balancer`: how its clients ask servers, and how its trainer speaks to servers and balancer.
    `make_face(server)`: a server under the names of the framework's methods. The one for requests takes the request's
    number before its own arguments.
    `make_output(token_ids, log_probs, stop_reason, version)`: what a server answers.
    `returned(output)`: reads what the client's generate returned; what it raises is the client's fault.
    `make_balancer(servers, router)`: the balancer of a client that brings none.
    `suts`: the names of the systems under test that it offers, each the framework's own or with `:VARIANT` behind it.
    `load(name)`: one of these; raises `SutError` that says what is missing.
    `max_parked_s`: how long a request may wait at a closed gate beyond the pause that a Case asks for; searches write
    it into the Cases that they draw, and a run goes by its Case (`ServerSettings`).
    `callers`: which features of a Case its own callers bring about (`sim.reach`); empty where nothing is known of them.
    `met_by`: by an invariant's number which of its own callers meet a violation of it, and how; for stock finds.
    `policies`: those that its SUTs declare (`sim.policies`).
    """

    name: str
    make_config: Callable[[Case], Any]
    budget_setting: str
    make_params: Callable[[Limit | None], dict[str, Any]]
    requests: RequestProtocol
    trainer: TrainerCalls
    balancer: BalancerProtocol
    make_face: Callable[[RolloutServer], Any]
    make_output: MakeOutput
    returned: Callable[[Any], Returned]
    make_balancer: Callable[[dict[str, Any], Router], Any]
    suts: tuple[str, ...]
    load: "Callable[[str], Sut]"
    max_parked_s: float = MAX_PARKED_S
    callers: Mapping[str, bool] = field(default_factory=dict)
    met_by: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)

    def call(self, part: str, *args: Any) -> Any:
        """Calls one of its functions that have to return something. Raises `SutError` of its own, and `PluginError`
        where a project's function fails or returns nothing."""
        function, named = getattr(self, part), f"framework {self.name!r}, {part}"
        try:
            made = function(*args)
        except SutError:
            raise
        except Exception as error:
            blame(error, function, named)
        if made is None:
            raise PluginError(f"{named}: it returned None")
        return made


@dataclass(frozen=True)
class Sut:
    """A system under test by name.

    `key`: under which expected verdicts are kept: the name, or name==version for a package. `factory`: returns a
    client, or (client, balancer). `framework`: whose config, params and messages it knows. `make_server`: makes the
    servers of its world; planted bugs may bring their own. `declared`: the policies that it declares by itself;
    `flags`: those that whoever runs it sets, against what it and its parts declare (`sim.policies`).
    """

    name: str
    key: str
    factory: Factory
    framework: Framework
    make_server: MakeServer = SimulatedServer
    declared: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
