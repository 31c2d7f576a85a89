"""Bugs planted on purpose, each to be caught by an invariant; `sim.sut.planted` lists them."""
