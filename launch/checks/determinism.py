"""Which XLA flags make the same program give the same bits, and their price.

The shadow of a stage may apply the same update as its owner only if both get
the same bits, in two processes. On a GPU two things stand against that: sums by
atomic operations, and autotuning, which picks kernels by measured time.

  default            neither is prevented
  deterministic_ops  no atomic sums, no autotuning: the first kernel is taken
  autotune_dir       scattered sums in order; choices kept in a folder
  autotune_file      scattered sums in order; choices kept in one file

This module starts no JAX; `bits` is run twice per line, in two processes.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import tempfile

from launch.checks import child
from launch.checks import finding as finding_lib
from launch.checks import settings as settings_lib

REQUIRED = "deterministic_ops"  # What we rely on.

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


def make_modes(folder: pathlib.Path) -> dict[str, tuple[str, str]]:
  """Returns the XLA flags of the first and the second process, by mode.

  Args:
    folder: Where autotuning may keep its choices.
  """
  directory, file = folder / "kernels", folder / "autotune.textproto"
  directory.mkdir()
  strict = "--xla_gpu_deterministic_ops=true"
  in_dir = f"{_ORDERED} --xla_gpu_per_fusion_autotune_cache_dir={directory}"
  return {
      "default": ("", ""),
      REQUIRED: (strict, strict),
      "autotune_dir": (in_dir, in_dir),
      "autotune_file": (
          f"{_ORDERED} --xla_gpu_dump_autotune_results_to={file}",
          f"{_ORDERED} --xla_gpu_load_autotune_results_from={file}",
      ),
  }


def compare(values: Sequence[Mapping[str, object]]) -> Outcome:
  """Returns how the values of `bits` of several processes compare."""
  return Outcome(
      same_in_process=all(len(set(v["digests"])) == 1 for v in values),
      same_across=len({v["digests"][0] for v in values}) == 1,
      forward_ms=values[-1]["forward_ms"],
      backward_ms=values[-1]["backward_ms"],
  )


def run(
    settings: settings_lib.Settings, *, timeout_secs: float
) -> finding_lib.Finding:
  """Runs the modes; a problem only if the required one is not deterministic.

  Args:
    settings: What to check.
    timeout_secs: How long each process may take.
  """
  outcomes, problems = {}, []
  with tempfile.TemporaryDirectory() as folder:
    for mode, flags in make_modes(pathlib.Path(folder)).items():
      found = [
          child.run_check(
              "bits", settings, xla_flags=f, timeout_secs=timeout_secs
          )
          for f in flags
      ]
      if wrong := [p for f in found for p in f.problems]:
        problems.append(f"{mode}: {wrong[0]}")
      else:
        outcomes[mode] = compare([f.values for f in found])
  needed = outcomes.get(REQUIRED)
  if needed and not (needed.same_in_process and needed.same_across):
    problems.append(f"{REQUIRED} does not give the same bits")
  values = {mode: dataclasses.asdict(o) for mode, o in outcomes.items()}
  return finding_lib.Finding(render(outcomes), values, problems)


def render(outcomes: Mapping[str, Outcome]) -> list[str]:
  """Returns a table with a line per mode."""
  word = lambda same: "same" if same else "differ"
  header = ("mode", "in process", "across", "forward ms", "backward ms")
  rows = [header] + [
      (
          mode,
          word(o.same_in_process),
          word(o.same_across),
          f"{o.forward_ms:.3f}",
          f"{o.backward_ms:.3f}",
      )
      for mode, o in outcomes.items()
  ]
  return finding_lib.align(rows, left={0, 1, 2})
