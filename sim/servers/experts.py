"""The experts that the fake model routes its tokens to: which they are says whose row it is.

As engines have it, there is a row for each token that was fed to the model, the prompt's too, and none for the last
one, which was only sampled: of N tokens in all, N − 1 rows. A row is one per layer of the experts chosen there; of
the fake model's it is [[position, version]], one layer of two, where the version is that of the weights that read the
token. What was in the prompt was read by the weights at the request's start.
"""

import importlib
from collections.abc import Iterable
from typing import Any, Literal

Container = Literal["none", "list", "numpy", "torch"]


def routed_experts(container: Container, prompt_tokens: int, runs: Iterable[tuple[int, int, int]]) -> Any:
    """The rows of an answer, in a container of shape (rows, 1, 2); None where none are asked for, or none are there.

    `runs`: what was decoded, as (position, tokens, version).
    """
    runs = list(runs)
    if container == "none" or not runs:
        return None
    versions = [runs[0][2]] * prompt_tokens
    for _, tokens, version in runs:
        versions += [version] * tokens
    # The token at a position is read by the step that decodes the next one.
    rows = [[[position, version]] for position, version in enumerate(versions[1:])]
    if container == "list":
        return rows
    if container == "numpy":
        return importlib.import_module("numpy").array(rows, dtype="int32").reshape(-1, 1, 2)
    torch = importlib.import_module("torch")
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, 1, 2)
