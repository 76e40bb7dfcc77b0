"""The passes of a step as programs in lockstep, one for each pipeline.

Every device runs the same loop over ticks; a table, an argument made by
`schedule.ticks`, says what it does in each. State, sums and all phases after
the passes are those of rows. Read `program` first, then `tick`.

  engine        Programs of all pipelines, and who owns what.
  run           A step on its way, and how it goes on after a death.
  ring          Those who run it together, in one process or in many.
  program       The program of a segment of a step.
  tick          What a device does in one tick.
  block_passes  Forward and backward pass of the repeating blocks.
  end_passes    The same of the layers before and after them.
  weights       From the state of a node to arguments, and from sums back.
  layout        Which stage has which layers.
  buffers       What goes from tick to tick.
  processes/    What pipelines over several processes need of JAX.
  branch        A branch that changes large arrays in place.
"""
