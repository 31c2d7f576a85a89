"""What reaches outside the process is refused by name."""

from contextlib import closing

import pytest

from sim.clock import VirtualLoop


@pytest.mark.parametrize("name", ["add_reader", "create_connection", "subprocess_exec", "getaddrinfo"])
def test_what_needs_the_outside_world_is_refused_by_name(name: str) -> None:
    with closing(VirtualLoop()) as loop, pytest.raises(NotImplementedError, match=f"^{name}: a virtual loop has no"):
        getattr(loop, name)("anything")
