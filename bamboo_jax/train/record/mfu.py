"""Model FLOPs utilisation of a step: the share of its devices' peak."""

import functools

import jax

from bamboo_jax.accounting import machines
from bamboo_jax.runtime.profile import products
from bamboo_jax.train.setup import job as job_lib


class Mfu:
  """Counts the products of a job; see `runtime.profile.products`.

  Attention by a fused kernel is no product and is not counted.
  """

  def __init__(self, job: job_lib.Job) -> None:
    self._job = job

  def find(self, secs: float, *, num_nodes: int) -> dict[str, float]:
    """Returns the `mfu_pct` of a step of `secs` on `num_nodes`.

    Empty if the peak of the device is not known. The first call traces the
    model.
    """
    if self._peak_flops is None or not num_nodes:
      return {}
    peak_flops = num_nodes * self._peak_flops
    return {"mfu_pct": 100 * self._step_flops / (secs * peak_flops)}

  @functools.cached_property
  def _peak_flops(self) -> float | None:
    """Operations per second of a node at most."""
    peak = machines.find_peak_tflops(
        jax.local_devices()[0].device_kind,
        dtype=self._job.task.whole.model.fingerprint.get("dtype", ""),
    )
    mesh = self._job.config.node.mesh
    return None if peak is None else 1e12 * peak * mesh.data * mesh.tensor

  @functools.cached_property
  def _step_flops(self) -> float:
    per_microbatch = products.step_flops(self._job.task.whole)
    return per_microbatch * self._job.plan.batch.total_microbatches
