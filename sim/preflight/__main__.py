"""`python -m sim.preflight`."""

from sim.preflight.command import preflight

preflight(prog_name="rollcage preflight")
