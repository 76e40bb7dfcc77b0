"""Keeps the executables of XLA, so that each program is compiled once.

A pipeline needs one program on many devices: the owner of a stage, its shadow,
after every recovery, in every process of a machine, in every run. XLA takes
seconds to compile it; to load it takes milliseconds and gives the same bits.
So all that JAX wants compiled is looked up first; call sites only trace and
lower. Read `store` first.

  key       what a compiled program depends on, in one hash
  folder    entries on disk, for many processes at once
  mappings  of memory, which loaded programs may use up
  store     memory in front of these; `use` puts it between JAX and XLA
"""
