"""Figures of results: each function takes result objects and returns a Matplotlib figure."""
