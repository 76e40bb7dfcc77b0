"""A step of all pipelines and stages as one compiled program.

Every device runs the same loop over ticks; a table, made by `schedule.ticks`,
says what it does in each. Read `program` first, then `tick`.

  engine        Runs steps, and holds the state that they work on.
  program       The step: ticks, then the phases after them.
  tick          What a device does in one tick.
  block_passes  Forward and backward pass of the repeating blocks.
  end_passes    The same of the layers before and after them.
  finish        From the gradients of one device to the next state.
  layout        Which stage has which layers.
  state         State of all layers by place on the mesh.
  arguments     What the program takes.
  buffers       What waits on a device between two ticks.
  branch        A branch that changes large arrays in place.
  trees         Sums, zeros and shapes of trees of arrays.
  ledger        What a device holds in memory.
"""
