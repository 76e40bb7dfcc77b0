"""Numbers computed from a config alone, without JAX; and its checked faults."""

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import machines, prices as prices_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.schedule import instruction


def num_nodes(config: config_lib.Config) -> int:
  """Returns the number of nodes at the start, spares included."""
  pipeline = config.pipeline
  return pipeline.num_pipelines * pipeline.num_stages + config.redundancy.spares


def describe_batch(config: config_lib.Config) -> str:
  """Returns the batch size in words."""
  pipeline = config.pipeline
  num, size = pipeline.num_microbatches, pipeline.microbatch_size
  all_parts = [(pipeline.num_pipelines, "copy", "copies"), (num, "microbatch", "microbatches")]
  total = size * num * pipeline.num_pipelines
  if pipeline.layout != "depth":  # The number of copies follows from that of nodes.
    all_parts = [(total // size, *all_parts[1][1:])]
  parts = [f"{n} {one if n == 1 else many}" for n, one, many in all_parts]
  return f"{total} samples a step: {' x '.join([*parts, str(size)])}"


def num_devices(config: config_lib.Config) -> int:
  """Returns the number of devices of a node."""
  return config.node.mesh.data * config.node.mesh.tensor


def find_machine(config: config_lib.Config) -> machines.Machine | None:
  """Returns the machine to plan for; None: this one.

  Raises `ValueError` if it is not known, or a node needs more GPUs.
  """
  if config.plan.machine is None:
    return None
  machine = machines.find_machine(config.plan.machine)
  mesh = config.node.mesh
  if machine.num_gpus % num_devices(config) and machine.is_instance:
    raise ValueError(
        f"config.node.mesh.data={mesh.data} x config.node.mesh.tensor="
        f"{mesh.tensor} must divide the {machine.num_gpus} GPUs of "
        f"config.plan.machine={machine.name!r}."
    )
  return machine


def find_price(config: config_lib.Config) -> prices_lib.Price | None:
  """Returns the price of a node; None if the config names no kind of node.

  Raises `ValueError` for a file of prices that cannot be read, or a price that it lacks.
  """
  try:
    return prices_lib.find(config.cost)
  except OSError as error:
    raise ValueError(
        f"config.cost.prices={config.cost.prices!r} cannot be read: {error.strerror}."
    ) from error


def read_faults(config: config_lib.Config, path: str | None) -> tuple[faults_lib.Fault, ...]:
  """Returns the faults of a file, checked against the config.

  Empty if nodes are not preemptible. Raises as `faults.read_faults`, and
  `ValueError` for a slow node if one program runs all nodes.
  """
  if path is None or not config.recovery.is_preemptible:
    return ()
  # Spares and nodes that join may form more pipelines, at most one for each share.
  pipelines = config.pipeline.num_shares or config.pipeline.num_pipelines
  stages = config.pipeline.num_stages
  if config.pipeline.layout != "depth":  # Pipelines have any depth.
    stages = num_nodes(config)
  # A node may own all stages, and send each output to an owner and a shadow.
  faults = faults_lib.read_faults(
      path,
      num_steps=config.num_steps,
      num_pipelines=pipelines,
      num_stages=stages,
      num_instructions=2 * len(instruction.Op) * stages * config.pipeline.total_microbatches,
  )
  for fault in faults:
    if fault.kind == "slow" and config.pipeline.executor == "spmd":
      raise ValueError(
          f"{path}, line {fault.line}: slow needs executor='rows', as one "
          "program runs all nodes."
      )
  return faults
