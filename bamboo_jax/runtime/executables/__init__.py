"""Keeps XLA's executables, so that each program is compiled once.

A pipeline needs one program on many devices: on the owner of a stage, on its
shadow, after every recovery, in every process of a machine, and in every run.
Compiling takes seconds; loading takes milliseconds and gives the same bits. JAX
looks every program up in its persistent compilation cache; this package reads and
writes the entries of that cache. JAX's own files do not serve: JAX writes them in
place, never replaces a damaged one, does not check which users may write to the
folder, and compiles again for each device.

  program_store   in memory, and below what names; `use` gives it to JAX
  program_folder  entries on disk, shared by processes
"""
