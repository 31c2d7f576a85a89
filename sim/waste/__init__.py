"""Waste: how many decoded tokens are thrown away, what they cost, and what a fix would save.

`ledger` gives each decoded token of a trace one fate; `independent` computes the same without a simulation where that
is exact. `variants`, `lengths` and `what_if` are the comparison behind `rollcage waste`, and `cost` turns tokens into
engine time.
"""
