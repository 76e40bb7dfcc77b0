"""The executor `spmd`: passes as programs in lockstep, one per pipeline.

Every device runs the same loop over ticks; a table, an argument made by
`ticks`, says what it does in each tick. State, sums and all phases after the
passes are shared with rows. Only `training.setup.executors` imports this package.
Read `executor` first, then `program` and `tick`.

  executor      Passes of a step by the engine, or by rows where it cannot.
  plan          Plans the ticks of a step, and their times.
  memory        Predicts the device memory of a node.
  ticks         The table that a program runs, lowered from a schedule.
  engine        The programs of all pipelines, and their roles.
  pipeline_run  The progress of a step, and how it continues after a death.
  program       The program of a segment of a step, and its arrays over all devices.
  tick          The passes and the exchange of one tick on one device.
  passes        Forward and backward pass of a stage, from the programs of its units.
  weights       Packs the state of a node to arguments, and unpacks its sums.
  layout        Which stage has which layers.
  buffers       The arrays that a device keeps between ticks.
  processes     Pipelines over processes, by JAX's multi-process runtime.
  branch        A branch that changes large arrays in place.
"""
