"""What runs by default gives the same verdict every time; `--hypothesis-profile=fresh` looks for new examples."""

from hypothesis import settings

settings.register_profile("gate", derandomize=True, database=None)
settings.register_profile("fresh", derandomize=False)
settings.load_profile("gate")
