"""What runs on devices: nodes, their programs, and what goes between them.

All decisions come in as plain values: the layers of a stage, owners, shadows,
the order of instructions. Two executors carry them out: in one each node runs a
row of instructions, in the other the passes of a step are programs in lockstep.
Nodes may come and go in the middle of a step of either.

  engine         The nodes of this process and their roles; read this first,
  node           then this: how a node runs one instruction.
  pace           The clock of nodes whose layers only take their time.
  phases/        The phases of a step, functions of the engine.
  stage/         What one node computes: specs, functions, programs, arrays.
  wire/          What goes between nodes, and how it is ended if one dies.
  spmd/          The other executor: the passes of a step as one program.
  profile/       What layers, programs and instructions take.
  program_cache  The programs of a model, kept while nodes change.
  recent         Programs that were used last; others make way for them.
  executables/   What XLA has compiled, kept for other devices and processes.
  devices        Virtual devices, and which node is on which.
  places         On which devices of a node its arrays lie.
  rounding       What results are rounded by, beside the config.
  accelerator    What GPUs need before JAX starts.
  allocator      Makes malloc keep what it has.
  compat         All of JAX that is not public.
"""
