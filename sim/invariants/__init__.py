"""The invariants: one file a kind, the table of them all, and the judge that holds a run against them.

This file imports nothing, so that `sim.invariants.kinds` can be read at once.
"""
