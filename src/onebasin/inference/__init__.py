"""Fitting posteriors: methods as plain values, and one loop that runs them.

Nothing is imported here, so that the command line can read `methods` without loading JAX.
"""
