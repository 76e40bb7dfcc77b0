"""Tests the simulated cluster: `bamboo_jax.testing.simulation`.

corpus   seeds of histories that once violated an invariant
mutants  one-line faults of the control plane, and how many are found
"""
