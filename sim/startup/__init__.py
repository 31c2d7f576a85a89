"""What would start: the rules of vLLM's configuration, by version."""
