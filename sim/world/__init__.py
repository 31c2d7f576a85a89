"""One simulated run: what a Case is made into, and what runs it."""

from sim.world.world import World, run_world

__all__ = ["World", "run_world"]
