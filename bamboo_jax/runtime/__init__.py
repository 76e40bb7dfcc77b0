"""Everything that runs on devices: nodes, their programs, their transfers.

All decisions are passed in as plain values: the layers of a stage, owners,
shadows, the order of instructions. Two executors run the passes of a step: in
one each node runs a row of instructions, in the other they are programs in
lockstep. Both allow nodes to join and leave in the middle of a step.

  engine         The nodes of this process and their roles; read this first,
  node           then this: how a node runs one instruction; the clock of nodes
                 whose layers sleep rather than compute.
  executor       The interface of executors, and the one that runs rows; fills
                 waits of a row with redundant forward passes.
  phases/        The phases of a step, functions of the engine.
  stage/         The computations of one stage: specs, programs, arrays.
  wire/          Transfers between nodes, and how a death aborts them.
  spmd/          The other executor: the passes of a step as one program.
  profile/       Times of layers, programs and instructions.
  program_store  XLA's executables, kept for other devices and processes.
  devices        Virtual devices, and the assignment of nodes to devices.
  places         On which devices of a node its arrays lie.
  rounding       Everything beside the config that affects rounding;
  settings       of that, the settings of JAX and XLA.
  accelerator    Settings of GPUs that precede the start of JAX.
  compat         The private API of JAX that the project uses.
"""
