"""Runs and comparisons, told: on the terminal, as pages and pictures, as plain data. Reports never run a world."""
