"""Everything that one node computes for one stage, without other nodes.

spec         Layers, units and all shapes of a stage. Read this first.
programs     Forward, backward, update and so on of a unit, under `jax.jit`.
array_store  The arrays of the current step, and in which memory they lie.
"""
