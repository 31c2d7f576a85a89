"""rollcage: a deterministic simulation and property-testing harness for LLM rollouts.

One way through the house: Case → World → Trace → verdicts → report. Start with `sim.case`.
"""
