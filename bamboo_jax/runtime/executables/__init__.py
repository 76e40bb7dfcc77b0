"""Caches XLA executables, so that each program is compiled once.

A pipeline needs one program on many devices: on the owner of a stage, on its
shadow, after every recovery, in every process of a machine, and in every run.
Compiling takes seconds; loading takes milliseconds and gives the same bits. So
every compilation of JAX is looked up here first; call sites only trace and
lower. Read `program_store` first.

  key             hash of everything that a compiled program depends on
  program_folder  entries on disk, shared by processes
  mappings        limit of memory mappings, which loaded programs use up
  program_store   cache in memory in front of these; `use` hooks it into JAX
"""
