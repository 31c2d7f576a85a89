"""An in-memory network in virtual time, so that unmodified network code runs in a world."""

from sim.net.host import Line
from sim.net.loop import NetworkedLoop
from sim.net.network import StreamNetwork
from sim.net.stream import TlsRefused

__all__ = ["Line", "NetworkedLoop", "StreamNetwork", "TlsRefused"]
