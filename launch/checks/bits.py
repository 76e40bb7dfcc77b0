"""What bits the programs of a small model give, twice in one process.

`determinism` runs this under different XLA flags and compares processes.
"""

import hashlib

import jax
import numpy as np

from bamboo_jax.runtime.profile import program_times
from launch.checks import finding as finding_lib
from launch.checks import settings as settings_lib
from launch.checks import subject


def run(settings: settings_lib.Settings) -> finding_lib.Finding:
  """Returns digests of all gradients and losses, and the times of the passes.

  The model has one block of full width: embedding, attention, MLP and head,
  thus products, reductions and, for the embedding, scattered sums.
  """
  bench = program_times.StageBench(
      subject.make_whole(settings, num_blocks=1),
      batch=subject.make_microbatch(settings, 0),
      device=jax.devices()[0],
  )
  digests = []
  for _ in range(4):
    bench.clear()
    bench.forward()
    bench.backward()
    digests.append(digest(bench.total))
  values = {"digests": digests}
  for name in ("forward", "backward"):
    _, values[f"{name}_ms"] = program_times.time_calls(
        getattr(bench, name), num_repeats=settings.num_repeats
    )
  return finding_lib.Finding([f"digest {d}" for d in digests], values)


def digest(tree: object) -> str:
  """Returns a name for the bits of all arrays."""
  sha = hashlib.sha256()
  for leaf in jax.tree.leaves(tree):
    sha.update(np.ascontiguousarray(leaf).tobytes())
  return sha.hexdigest()[:16]
