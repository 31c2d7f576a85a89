"""Waste: how many decoded tokens are thrown away, what they cost, and what a fix would save.

`ledger` gives each decoded token of a trace one fate. `closed_form` (one response) and `independent` (many) compute
the same without a simulation where that is exact. `policies`, `lengths` and `what_if` are the comparison behind
`rollcage waste`, and `cost` turns tokens into engine time.
"""
