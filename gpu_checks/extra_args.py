"""Keys of a request's `extra_args` that `gpu_checks.processors` goes by."""

SLOW_AT = "rollcage_slow_at"
"""Output tokens (from 0) whose steps are slow."""

OUTPUT_BASE = "rollcage_output_base"
"""The first token of an output that is written for the model."""
