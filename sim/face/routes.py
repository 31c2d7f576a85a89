"""What the faces have in common: a table of routes, and what a client is told of what goes wrong."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sim.dialects import Refused
from sim.face.http import HangUp, HttpAnswer, HttpRequest
from sim.face.replica import Replica
from sim.servers.failures import ActorError, CallFailed

Route = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class RoutedFace(ABC):
    """Answers a replica's requests; see `sim.face.http.Handle`. `routes`: by method and path. Of a replica that is dead
    nobody is told anything."""

    routes: Mapping[tuple[str, str], Route]

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    async def __call__(self, request: HttpRequest) -> HttpAnswer:
        route = self.routes.get((request.method, request.path))
        if route is None:
            is_known = any(path == request.path for _, path in self.routes)
            return HttpAnswer(405, {"detail": "Method Not Allowed"}) if is_known else HttpAnswer(404, _NOT_FOUND)
        if request.method == "GET" and self.replica.server.is_dead:  # all others ask the server
            raise HangUp
        try:
            return await route(request)
        except ActorError as error:  # the replica, or the way to it, is gone
            raise HangUp from error
        except CallFailed as error:
            return self.error(500, str(error))
        except (Refused, TypeError, ValueError, LookupError) as error:
            return self.error(400, str(error))

    @abstractmethod
    def error(self, status: int, message: str) -> HttpAnswer:
        """In the words of the server."""

    async def say_well(self, request: HttpRequest) -> HttpAnswer:
        """200, with no body."""
        del request
        return HttpAnswer(200)


_NOT_FOUND = {"detail": "Not Found"}


def json_object(request: HttpRequest) -> dict[str, Any]:
    """The body. Raises ValueError for what is none."""
    found = request.json()
    if not isinstance(found, dict):
        raise ValueError("the body must be a JSON object")
    return found


def token_ids_of(body: Mapping[str, Any], prompt: Any) -> list[int]:
    """The ids of a prompt. Raises ValueError for what is none, and for a stream."""
    if body.get("stream"):
        raise ValueError("stream: this face does not stream")
    if not (isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt)):
        raise ValueError("a list of at least one token id is needed; this face knows no text, and one prompt a request")
    return prompt


def is_yes(text: str) -> bool:
    """A flag of a query."""
    return text.lower() in ("true", "1")
