"""The servers of a world, and what they ask of an engine."""
