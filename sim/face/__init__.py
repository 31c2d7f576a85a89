"""HTTP faces of the simulated servers, on the network of a world, by the name that Cases have for them."""

from collections.abc import Callable
from typing import Any

from sim.face.http import Handle, HttpProtocol, import_h11
from sim.face.replica import REQUESTS, Replica
from sim.face.sglang import SglangFace
from sim.face.vllm import VllmFace
from sim.settings import Face

FACES: dict[Face, Callable[[Replica, int], Handle]] = {"vllm": VllmFace, "sglang": SglangFace}
"""(replica, max_model_len) → what answers its requests."""

PORT = 8000
"""Of every replica; each has a host of its own."""


async def show(loop: Any, face: Face, name: str, replica: Replica, max_model_len: int) -> str:
    """Serves the replica under this face on a host of its name. Returns its base URL. `loop`: a `NetworkedLoop`. Raises
    `SutError` where h11 is missing."""
    import_h11()
    handle = FACES[face](replica, max_model_len)
    loop.network.add_host(name)
    await loop.create_server(lambda: HttpProtocol(handle), name, PORT)
    return f"http://{name}:{PORT}"


__all__ = ["FACES", "REQUESTS", "Replica", "show"]
