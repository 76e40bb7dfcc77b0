"""Model FLOPs utilisation of a step: the share of its devices' peak."""

import functools

import jax

from bamboo_jax.accounting import machines
from bamboo_jax.runtime.profile import products
from bamboo_jax.training.setup import job as job_lib


class Mfu:
  """Counts the products of a job; see `runtime.profile.products`.

  Attention by a fused kernel is no product and is not counted.
  """

  def __init__(self, job: job_lib.Job, *, peak_flops: float) -> None:
    """`peak_flops` are the operations per second of a node at most."""
    self._job, self._peak_flops = job, peak_flops

  @classmethod
  def of(cls, job: job_lib.Job) -> "Mfu | None":
    """Returns it for the devices here; None if their peak is not known."""
    peak = machines.find_peak_tflops(
        jax.local_devices()[0].device_kind, dtype=job.task.whole.model.fingerprint.get("dtype", "")
    )
    mesh = job.config.node.mesh
    if peak is None:
      return None
    return cls(job, peak_flops=1e12 * peak * mesh.data * mesh.tensor)

  def find_pct(self, secs: float, *, num_nodes: int) -> float:
    """Returns the percentage of a step of `secs` on `num_nodes`.

    The first call traces the model.
    """
    return 100 * self._step_flops / (secs * num_nodes * self._peak_flops)

  @functools.cached_property
  def _step_flops(self) -> float:
    per_microbatch = products.step_flops(self._job.task.whole)
    return per_microbatch * self._job.plan.batch.total_microbatches
