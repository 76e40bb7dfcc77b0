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
time. Without a machine the rates are assumed, by platform, so that a config has
the same plan everywhere.
"""

from collections.abc import Iterable
import dataclasses
from typing import NamedTuple

from bamboo_jax.accounting import machines
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.profile import products
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib


class LinkCost(NamedTuple):
  """The time of a transfer or a sum, linear in its bytes."""

  latency_ms: float
  bytes_per_ms: float


class Roofline(NamedTuple):
  """Counts the times of layers on one device.

  Attributes:
    flops_per_ms: Operations of products.
    bytes_per_ms: Between the device and its memory.
    host_bytes_per_ms: Between device and host memory.
    link: Between two nodes.
    start_ms: What a program takes at least.
    loop_length: Assumed of loops whose length depends on data; None: they are refused.
  """

  flops_per_ms: float
  bytes_per_ms: float
  host_bytes_per_ms: float
  link: LinkCost
  start_ms: float = 0.0
  loop_length: int | None = None

  @classmethod
  def of(cls, spec: spec_lib.StageSpec, machine: machines.Machine) -> "Roofline":
    """Returns the roofline of a GPU of the machine for a model."""
    flops = machine.flops_per_sec if spec.is_mixed else machine.float32_flops_per_sec
    return cls(
        flops / 1e3,
        machine.memory_bytes_per_sec / 1e3,
        machine.pcie_bytes_per_sec / 1e3,
        LinkCost(0.05, machine.link_bytes_per_sec / 1e3),  # The latency is assumed.
    )

  def pass_ms(self, programs: programs_lib.UnitPrograms, name: str) -> float:
    """Returns the time of a program of `UnitPrograms`, such as "forward"."""
    traced = programs.trace(name)
    if name not in ("forward", "backward"):
      moved = spec_lib.nbytes((traced.in_avals, traced.out_info))
      return self.start_ms + moved / self.bytes_per_ms
    # Efficiencies are shares of all products that are traced.
    is_frozen = any(layer.trained for layer in programs.unit.layers)
    jaxpr = traced.jaxpr.jaxpr
    if is_frozen:
      jaxpr, _ = compat.drop_unused(jaxpr, [True] * len(jaxpr.outvars))
    found_ms = self.products_ms(products.find_products(jaxpr, loop_length=self.loop_length))
    moved = 3 * spec_lib.nbytes(programs.unit.accumulator.grads) if name == "backward" else 0
    return self.start_ms + found_ms + moved / self.bytes_per_ms

  def products_ms(self, found: Iterable[products.Product]) -> float:
    """Returns the time of products and of kernels between them, at best."""
    total_ms = 0.0
    for product in found:
      bytes_ms = product.num_bytes / self.bytes_per_ms
      total_ms += max(product.flops / self.flops_per_ms, bytes_ms) + bytes_ms
    return total_ms


_ASSUMED = {
    "cpu": Roofline(5e7, 1e7, 1e7, LinkCost(0.2, 1e6), start_ms=0.01, loop_length=1),
    "gpu": Roofline(2e11, 2e9, 2.5e7, LinkCost(0.05, 1e7), start_ms=0.01, loop_length=1),
}


def assume(platform: str) -> Roofline:
  """Returns assumed rates of a platform; others than the CPU are GPUs."""
  return _ASSUMED.get(platform, _ASSUMED["gpu"])


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

  return dataclasses.replace(
      profile,
      layers=tuple(map(spread, profile.layers)),
      measured=False,
      host_bytes_per_ms=machine.pcie_bytes_per_sec / 1e3 * data * tensor,
  )
