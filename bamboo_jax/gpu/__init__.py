"""Compiles a run's programs for a GPU on a machine without one.

XLA needs a description of the GPU, no driver, and no library of NVIDIA. Nothing
runs.

  private  what JAX does not offer: devices without hardware, and what XLA is told of them
  report   programs, their memory and costs as text; fails if one does not fit

Read `report` first. What the programs do is asserted by `tests/gpu_compile`, which reads
their text.
"""
