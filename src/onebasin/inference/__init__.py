"""Fitting posteriors: one loop, and methods as plain values.

Nothing is imported here, so that the command line can describe `methods` without loading JAX.
"""
