"""Times of the programs of layers on a machine with GPUs, by counting.

Each product takes as long as its operations at the peak, or as its bytes at the
bandwidth of memory. Between two products stand fused kernels that read and
write the same bytes once more. Scores of attention stay on the chip where
attention is one kernel. What remains of a pass moves its state: gradients are
written and added to their sum, an update reads and writes all that it has.

  forward    products, bytes between them
  backward   products, bytes between them, 3 x gradients
  update     arguments and results
  norms      arguments

Published runs reach a share of this, `Machine.efficiency`; `on_mesh` divides by
it. Sums between the GPUs of a node overlap with passes, unless they take more
time.
"""

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple

from bamboo_jax.accounting import machines
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.profile import products
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib

_LATENCY_MS = 0.05  # Assumed, of a transfer between processes.


class LinkCost(NamedTuple):
  """The time of a transfer or a sum, linear in its bytes."""

  latency_ms: float
  bytes_per_ms: float


@dataclasses.dataclass(frozen=True)
class Roofline:
  """Counts the times of layers on one GPU of a machine.

  Attributes:
    is_float32: Whether products are of float32 numbers.
  """

  machine: machines.Machine
  is_float32: bool

  @classmethod
  def of(cls, spec: spec_lib.StageSpec, machine: machines.Machine) -> "Roofline":
    """Returns the roofline for a model."""
    return cls(machine, is_float32=not spec.is_mixed)

  @property
  def host_bytes(self) -> float:
    """Bytes per millisecond between a GPU and host memory."""
    return self.machine.pcie_bytes_per_sec / 1e3

  @property
  def link(self) -> LinkCost:
    """The link between two nodes."""
    return LinkCost(_LATENCY_MS, self.machine.link_bytes_per_sec / 1e3)

  def pass_ms(self, programs: programs_lib.KindPrograms, name: str) -> float:
    """Returns the time of a program of `KindPrograms`, such as "forward"."""
    if name in ("forward", "backward"):
      traced = programs.traced(name)
      # Efficiencies are shares of all products that are traced.
      is_frozen = any(layer.trained for layer in programs.unit.layers)
      jaxpr = compat.drop_unused(traced) if is_frozen else traced.jaxpr
      found = products.find_products(jaxpr)
      secs = self.products_secs(found)
      moved = 3 * spec_lib.nbytes(programs.unit.accumulator.grads)
      secs += self._bytes_secs(moved if name == "backward" else 0)
    else:
      secs = self._bytes_secs(products.moved_bytes(programs.traced(name)))
    return 1e3 * secs

  def products_secs(self, found: Iterable[products.Product]) -> float:
    """Returns the time of products and of kernels between them, at best."""
    machine, secs = self.machine, 0.0
    peak = machine.flops_per_sec
    if self.is_float32:
      peak = machine.float32_flops_per_sec
    for product in found:
      bytes_secs = self._bytes_secs(product.num_bytes)
      secs += max(product.flops / peak, bytes_secs) + bytes_secs
    return secs

  def _bytes_secs(self, num_bytes: int) -> float:
    return num_bytes / self.machine.memory_bytes_per_sec


class Counted(NamedTuple):
  """A device whose time is XLA's counts over assumed rates per millisecond."""

  operations: float
  num_bytes: float
  host_bytes: float  # Between device and host memory.

  def pass_ms(self, programs: programs_lib.KindPrograms, name: str) -> float:
    """Returns the time of a program of `KindPrograms`, by XLA's counts."""
    traced = programs.traced(name)
    counts = traced.lower().cost_analysis() or {}
    moved_ms = products.moved_bytes(traced) / self.num_bytes
    return max(counts.get("flops", 0.0) / self.operations, moved_ms)


Rates = Counted | Roofline
# Assumed, by platform.
_COUNTED = {"cpu": Counted(5e7, 1e7, 1e7), "gpu": Counted(2e11, 2e9, 2.5e7)}


def find_rates(platform: str) -> Counted:
  """Returns assumed rates of a platform; others than the CPU are GPUs."""
  return _COUNTED.get(platform, _COUNTED["gpu"])


def on_mesh(
    profile: cost_model.Profile,
    machine: machines.Machine,
    *,
    efficiency: float,
    data: int = 1,
    tensor: int = 1,
) -> cost_model.Profile:
  """Returns the costs of a node of `data` x `tensor` GPUs of the machine.

  All share the passes evenly. Over "data" a pass gathers the weights of a
  layer, and a backward pass sums its gradients, while others compute. Over
  "tensor" the output of each layer and its gradient are summed, and wait.

  Args:
    profile: Of one GPU at its roofline.
    efficiency: Share of the roofline that passes reach, above 0.
    data: GPUs over which examples are cut.
    tensor: GPUs over which products are cut.
  """
  rate = machine.inner_bytes_per_sec / 1e3
  share = efficiency * data * tensor

  def spread(cost: cost_model.LayerCost) -> cost_model.LayerCost:
    weights = (cost.copy_bytes or cost.parameter_bytes) / tensor
    gather_ms = (data - 1) / data * weights / rate
    scatter_ms = (data - 1) / data * cost.gradient_bytes / tensor / rate
    # Bytes that an all-reduce sends, per byte.
    ring = 2 * (tensor - 1) / tensor
    sum_ms = ring * cost.activation_bytes / data / rate
    forward_ms = max(cost.forward_ms / share, gather_ms) + sum_ms
    copy_ms = cost.redundant_ms and cost.redundant_ms - cost.forward_ms
    return dataclasses.replace(
        cost,
        forward_ms=forward_ms,
        backward_ms=max(cost.backward_ms / share, gather_ms + scatter_ms) + sum_ms,
        update_ms=cost.update_ms / share,
        norm_ms=cost.norm_ms / share,
        redundant_ms=copy_ms and forward_ms + copy_ms / (data * tensor),
    )

  host_rate = profile.host_bytes_per_ms
  return dataclasses.replace(
      profile,
      layers=tuple(map(spread, profile.layers)),
      measured=False,
      host_bytes_per_ms=host_rate and host_rate * data * tensor,
  )
