"""Compiles a run's programs for a GPU on a machine without one.

XLA needs a description of the GPU, no driver, and no library of NVIDIA. Nothing
runs.

  targets    the GPUs that are known: what XLA is told, and their peaks
  private    what JAX does not offer: devices without hardware
  programs   the programs that the plan of a config needs, compiled
  report     their memory and costs as text; fails if a stage does not fit

Read `programs` first. What the programs do is asserted by
`tests/gpu_compile`, which reads their text.
"""
