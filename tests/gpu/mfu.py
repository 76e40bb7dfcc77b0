"""Model FLOPs utilisation: the share of a device's peak, see `products`.

See `runtime.profile.products` for what counts as an operation of the model.
"""

import dataclasses

from bamboo_jax.runtime.stage import spec as spec_lib


def unread_attention(spec: spec_lib.StageSpec) -> int:
  """Returns the operations on scores that causal attention does not need.

  Of a forward pass of a GPT-2: half of its two products with scores.
  """
  num_examples, length = spec.batch["inputs"].shape
  shape = spec.model.fingerprint
  per_block = 2 * num_examples * length**2 * shape["width"]
  return shape["num_blocks"] * per_block


@dataclasses.dataclass(frozen=True)
class ProgramRate:
  """How fast one program runs.

  Attributes:
    unit: Owner of the program, such as "stage 0".
    program: Its name, such as "forward".
    ms: Time of a call when calls follow each other without a pause.
    alone_ms: Time of one call from its dispatch until the result is ready.
    compile_secs: Time to trace and compile it.
    model_flops: Operations of the model in one call; 0 if nothing counts.
    moved_bytes: Size of arguments and results.
    temp_bytes: Memory that it needs besides.
  """

  unit: str
  program: str
  ms: float
  alone_ms: float
  compile_secs: float
  model_flops: int
  moved_bytes: int
  temp_bytes: int

  def __post_init__(self) -> None:
    if not self.ms > 0:
      raise ValueError(f"ms must be positive, got {self.ms}.")

  @property
  def tflops(self) -> float:
    """Operations of the model, in 10**12 per second."""
    return self.model_flops / self.ms / 1e9

  @property
  def gigabytes_per_sec(self) -> float:
    """Arguments and results, in 10**9 bytes per second."""
    return self.moved_bytes / self.ms / 1e6

  def mfu(self, peak_tflops: float) -> float:
    """Returns the share of the peak that the model gets."""
    return self.tflops / peak_tflops


_HEADER = (
    *("unit", "program", "compile s", "ms", "alone ms"),
    *("GFLOP", "TFLOP/s", "MFU %", "GB/s", "temp MiB"),
)


def table_rows(rates: list[ProgramRate], *, peak_tflops: float | None) -> list[tuple[str, ...]]:
  """Returns the cells of a table and its header; "-" where nothing counts."""
  rows = [_HEADER]
  for rate in rates:
    counts = rate.model_flops > 0
    has_mfu = counts and peak_tflops is not None
    rows.append(
        (
            rate.unit,
            rate.program,
            f"{rate.compile_secs:.1f}",
            f"{rate.ms:.3f}",
            f"{rate.alone_ms:.3f}",
            f"{rate.model_flops / 1e9:.4g}" if counts else "-",
            f"{rate.tflops:.1f}" if counts else "-",
            f"{100 * rate.mfu(peak_tflops):.1f}" if has_mfu else "-",
            f"{rate.gigabytes_per_sec:.0f}",
            f"{rate.temp_bytes / 2**20:.0f}",
        )
    )
  return rows
