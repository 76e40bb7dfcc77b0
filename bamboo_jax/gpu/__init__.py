"""Compiles a run's programs for a GPU on a machine without one.

XLA needs a description of the GPU, no driver, and no library of NVIDIA. Nothing
runs; what the programs would do is read off their text.

  targets    the GPUs that are known: what XLA is told, and their peaks
  private    what JAX does not offer: devices without hardware
  programs   the programs that the plan of a config needs, compiled
  hlo        reads the text of a program
  findings   kernels, products, copies, waits, time by the roofline
  report     all of it as text, with tokens per second

Read `programs` first.
"""
