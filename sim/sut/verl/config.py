"""The parts of verl's config and the sampling params that its clients read, made from a Case."""

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from sim.case import Case, Limit


class Config:
    """A verl-shaped config: attribute access, `get`, AttributeError for what is missing."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default` where the key is missing."""
        return self.__dict__.get(name, default)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value!r}' for key, value in self.__dict__.items())})"


def make_config(case: Case) -> Config:
    """The config of a client, as the Case has it see its own."""
    budget = case.budget
    rollout: dict[str, Any] = {
        "name": case.server.dialect,
        "prompt_length": budget.prompt_length,
        "max_model_len": budget.context_tokens,
        "full_determinism": False,
    }
    response_length = budget.client_response_length
    if response_length is not UNSET:
        rollout["response_length"] = response_length
    return Config(
        actor_rollout_ref=Config(rollout=Config(**rollout)),
        async_training=Config(partial_rollout=case.partial_rollout),
    )


def make_params(limit: Limit | None) -> dict[str, Any]:
    """The sampling params that its agent loops pass, with a caller's limit in them."""
    params: dict[str, Any] = {"temperature": 1.0, "logprobs": True}
    if limit is not None:
        params.update(dict.fromkeys(limit.keys, limit.tokens))
    return params
