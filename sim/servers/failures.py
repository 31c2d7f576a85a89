"""How a call of a server fails through no fault of its caller; what the transport raises has the shape of Ray's."""


class CallFailed(Exception):
    """No answer came, and whatever was decoded for the call is lost. The same call may do well later, or elsewhere."""


class ServerError(CallFailed):
    """The server raised while it was at work: what is 500 over HTTP."""


class ActorError(CallFailed):
    """The transport's own: Ray's RayActorError."""


class ActorDiedError(ActorError):
    """The replica is dead, and so are the calls that it had."""


class ActorUnavailableError(ActorError):
    """The connection was lost, and with it the answer; the call may have been carried out."""
