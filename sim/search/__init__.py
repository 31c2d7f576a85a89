"""The search: Hypothesis draws worlds, a campaign runs them and keeps what breaks, shrunk."""
