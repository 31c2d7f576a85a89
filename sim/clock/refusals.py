"""What a virtual loop refuses by name: all that reaches outside the process."""

import asyncio
from typing import Any, NoReturn


class NothingOutside(asyncio.BaseEventLoop):
    """Raises NotImplementedError where asyncio would open a socket or pipe, look up a name, or wait for a signal."""


def _refusal(name: str) -> Any:
    def refuse(self: NothingOutside, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name}: a virtual loop has no sockets, pipes, subprocesses, signals or name look-up"
        )

    refuse.__name__ = name
    return refuse


for _name in (
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "sendfile", "start_tls", "getaddrinfo", "getnameinfo"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell"),
):
    setattr(NothingOutside, _name, _refusal(_name))
