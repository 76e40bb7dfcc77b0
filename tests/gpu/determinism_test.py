"""Which XLA flags make the same program give the same bits, and their price.

The shadow of a stage may apply the same update as its owner only if both get
the same bits, in two processes. On a GPU two things stand against that: sums by
atomic operations, and autotuning, which picks kernels by measured time.

  default        neither is prevented
  training       the flags that training sets
  cudnn          the same, with cuDNN's kernel of attention
  autotune_dir   scattered sums in order; choices kept in a folder
  autotune_file  scattered sums in order; choices kept in one file

`check_bits` is run twice per line, in two processes.
"""

import dataclasses
import hashlib
import sys

import jax
import numpy as np
import pytest

from tests.gpu import child, program_times, settings as settings_lib, subject

REQUIRED = "training"  # What we rely on.
CUDNN = "cudnn"

_ORDERED = "--xla_gpu_enable_scatter_determinism_expander=true"


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What two processes with the same flags gave.

  Attributes:
    same_in_process: Whether every process repeated its bits.
    same_across: Whether the first bits of the processes are the same.
    forward_ms: Time of a forward pass in the second process.
    backward_ms: Time of a backward pass there.
  """

  same_in_process: bool
  same_across: bool
  forward_ms: float
  backward_ms: float


def make_modes(folder):
  """Returns the XLA flags of the first and the second process, by mode.

  Autotuning may keep its choices in the folder.
  """
  directory, file = folder / "kernels", folder / "autotune.textproto"
  directory.mkdir()
  strict = settings_lib.SAME_BITS
  in_dir = f"{_ORDERED} --xla_gpu_per_fusion_autotune_cache_dir={directory}"
  return {
      "default": ("", ""),
      REQUIRED: (strict, strict),
      CUDNN: (strict, strict),
      "autotune_dir": (in_dir, in_dir),
      "autotune_file": (
          f"{_ORDERED} --xla_gpu_dump_autotune_results_to={file}",
          f"{_ORDERED} --xla_gpu_load_autotune_results_from={file}",
      ),
  }


def compare(values):
  """Returns how the values of `check_bits` of several processes compare."""
  return Outcome(
      same_in_process=all(len(set(v["digests"])) == 1 for v in values),
      same_across=len({v["digests"][0] for v in values}) == 1,
      forward_ms=values[-1]["forward_ms"],
      backward_ms=values[-1]["backward_ms"],
  )


def check_bits(settings):
  """Finds digests of all gradients and losses, and the times of the passes.

  The model has one block of full width: embedding, attention, MLP and head,
  thus products, reductions and, for the embedding, scattered sums. Without dropout
  attention is by the kernel of steps.
  """
  attention = None if settings.dropout_rate else settings.step_attention
  spec = subject.make_whole(settings, num_blocks=1, attention=attention)
  bench = program_times.StageBench(
      spec, batch=subject.make_microbatch(settings, 0), device=jax.devices()[0]
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
  return child.Found(values)


def digest(tree):
  """Returns a name for the bits of all arrays."""
  sha = hashlib.sha256()
  for leaf in jax.tree.leaves(tree):
    sha.update(np.ascontiguousarray(leaf).tobytes())
  return sha.hexdigest()[:16]


@pytest.mark.gpu
def test_determinism(run_alone, report, note, tmp_path):
  outcomes, problems = {}, []
  for mode, flags in make_modes(tmp_path).items():
    changes = {"dropout_rate": 0.0} if mode == CUDNN else {}
    found = [run_alone(check_bits, xla_flags=f, **changes) for f in flags]
    if wrong := [p for f in found for p in f.problems]:
      problems.append(f"{mode}: {wrong[0]}")
    else:
      outcomes[mode] = compare([f.values for f in found])
      note(**{mode: dataclasses.asdict(outcomes[mode])})
  for mode in (REQUIRED, CUDNN):
    needed = outcomes.get(mode)
    if needed and not (needed.same_in_process and needed.same_across):
      problems.append(f"{mode} does not give the same bits")
  report(child.Found(problems=problems))


@pytest.mark.parametrize(
    ("first", "second", "in_process", "across"),
    [("aaa", "aaa", True, True), ("aaa", "bbb", True, False), ("aab", "aaa", False, True)],
)
def test_compare(first, second, in_process, across):
  values = [{"digests": list(d), "forward_ms": 1.0, "backward_ms": 2.0} for d in (first, second)]
  assert compare(values) == Outcome(in_process, across, 1.0, 2.0)


def test_flags_exist(tmp_path):  # JAX reads them when a process starts it.
  flags = {f for pair in make_modes(tmp_path).values() for line in pair for f in line.split()}
  code = "import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()"
  problem = child.run_command(
      [sys.executable, "-c", code], xla_flags=" ".join(sorted(flags)), timeout_secs=60.0
  )
  assert problem is None
