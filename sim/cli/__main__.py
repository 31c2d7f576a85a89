"""`python -m sim.cli`."""

from sim.cli.main import main

main(prog_name="rollcage")
