"""The adapter to verl, which also serves clients of one's own that are written in its shape."""

from typing import Any

from sim.case import Router
from sim.sut.framework import Framework, Sut
from sim.sut.reference.routing import LeastLoadedBalancer
from sim.sut.verl import balancer, config, servers


def _make_balancer(handles: dict[str, Any], router: Router) -> LeastLoadedBalancer:
    return LeastLoadedBalancer(handles, router.tie_break, router.sticky)


def _load(name: str) -> Sut:
    from sim.sut.verl import classes

    return classes.load(name, VERL)


VERL = Framework(
    name="verl",
    make_config=config.make_config,
    budget_setting="response_length",
    make_params=config.make_params,
    requests=servers.REQUESTS,
    trainer=servers.Trainer(),
    balancer=balancer.PROTOCOL,
    make_face=servers.ServerFace,
    make_output=servers.make_output,
    returned=servers.returned,
    make_balancer=_make_balancer,
    suts=("verl", "verl:plain"),
    load=_load,
    callers={
        "a first prompt beyond prompt_length": False,  # agent loops truncate
        "a limit of the caller's own": False,
        "priorities of requests": False,
        "a replica added that may be there": False,  # the elastic manager skips live ids
        "a call that is cancelled": False,  # the workers gather their loops; only the end of a run cancels anything
        "a config that lacks, or misspells, response_length": False,
        "a context shorter than prompt_length + response_length": False,
        "a pause that does not abort": False,
        "a prefix cache that is kept over an update": False,
        "objects that are shared, not copied": False,
    },
    met_by={
        "B1": "any agent loop under a trainer that aborts to update (fully async, or separate async), with "
        "partial_rollout: what is asked for again after an abort is limited anew",
        "B2": "ToolAgentLoop, on a client that leaves the limit to the server: what a later turn's prompt has beyond "
        "prompt_length is taken off the response",
        "B7": "ToolAgentLoop: each turn may use response_length anew, and the loop slices the trajectory at it",
        "S1": "any agent loop under a trainer that aborts to update: an answer of no token counts among the versions",
        "R4": "any agent loop: GlobalRequestLoadBalancer takes the first of the least loaded where several are idle",
    },
)
