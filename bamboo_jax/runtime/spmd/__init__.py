"""The executor `spmd`: passes as programs in lockstep, one per pipeline.

Every device runs the same loop over ticks; a table, an argument made by
`ticks`, says what it does in each tick. State, sums and all phases after the
passes are shared with rows. Only `training.setup.build` imports this package.
Read `executor` first, then `program` and `passes`.

  executor   Passes of a step by programs, or by rows where they cannot.
  plan       Plans the ticks of a step, their times, and the memory of a node.
  ticks      The table that a program runs, lowered from a schedule.
  program    The program of a segment of a step; its progress, also after a death.
  passes     The passes and the exchange of one tick on one device.
  layout     Which stage has which layers.
  processes  Pipelines over processes, by JAX's multi-process runtime.
"""
