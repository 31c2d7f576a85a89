"""Preflight: would this vLLM or verl configuration start, and what would the engine silently do with it?

Data flows one way: a reader (`read_flags`, `read_yaml`, `read_shell`, `read_workflow`, or `scan` over a tree) yields
`launch.Launch`es; `check` judges each with verl's rules (`verl`) and vLLM's (`sim.startup`) and prices a raise
(`memory`); `report` prints; `command` is the command line.
"""
