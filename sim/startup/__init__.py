"""What would start: the rules of vLLM's configuration, by release. Nothing here imports vLLM, or the rest of sim.

`start.start` is what `create_engine_config` refuses, changes in silence, or leaves for the worker to find. `rules` has
the rules and what is said when one bites, `flags` what each engine argument may hold, `batch` and `kv_pool` the limits
that settings set one another, `model_shape` what the rules need to know of a model.

Each rule was read in vLLM's source and then held against the real function: 0.32 by
`tests/conformance/test_startup_live.py`, 0.24 to 0.31 by the same test with those packages. An older release is judged
as 0.24 is. Unset (`msgspec.UNSET`), null (`None`) and false are three different answers everywhere.
"""
