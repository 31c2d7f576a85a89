"""The kept cases on a real vLLM engine: does reality do what the simulation says?"""
