"""How many tokens per second a whole step trains, and what sameness costs."""

import dataclasses

import jax
import pytest

from bamboo_jax.accounting import machines
from bamboo_jax.runtime.profile import products
from tests.gpu import child, mfu, program_times, settings as settings_lib, subject

_SAME = "--xla_gpu_deterministic_ops=true"
_NO_TRITON = "--xla_gpu_enable_triton_gemm=false"
_MODES = {
    "any order": "",
    "no Triton": _NO_TRITON,
    "same bits": _SAME,
    "same bits, no Triton": settings_lib.SAME_BITS,
}


def check_step(settings):
  """Times a step of a whole GPT-2 on one device: passes and update."""
  settings = dataclasses.replace(settings, variant=settings.step_variant, dropout_rate=0.0)
  plain = subject.make_whole(settings)  # Kernels are no products to count.
  spec = subject.make_whole(settings, attention=settings.step_attention)
  device = jax.devices()[0]
  bench = program_times.StageBench(spec, batch=subject.make_microbatch(settings, 0), device=device)

  def run():
    for _ in range(settings.step_microbatches):
      bench.forward()
      bench.backward()
    return bench.update()

  _, ms = program_times.time_calls(run, num_repeats=settings.num_repeats)
  full = sum(products.layer_flops(plain).values())
  causal = full - mfu.unread_attention(plain)
  count = settings.step_microbatches * (1 + products.BACKWARD_FACTOR)
  tokens = settings.microbatch_size * settings.sequence_length
  peak = settings.peak_tflops or machines.find_peak_tflops(device.device_kind, dtype=settings.dtype)
  values = {
      "ms": ms,
      "tokens_per_sec": 1e3 * settings.step_microbatches * tokens / ms,
      "tflops": count * full / ms / 1e9,
      "causal_tflops": count * causal / ms / 1e9,
  }
  for name in ("tflops", "causal_tflops"):
    share = values[name] / peak if peak else None
    values[name.replace("tflops", "mfu")] = share
  return child.Found((), values)


def render(found):
  """Returns a table with a line per mode, and the prices of the others."""
  show = lambda share: "-" if share is None else f"{100 * share:.1f}"
  rows = [("mode", "step ms", "tokens/s", "MFU %", "MFU % causal")] + [
      (
          mode,
          f"{values['ms']:.2f}",
          f"{values['tokens_per_sec']:.0f}",
          show(values["mfu"]),
          show(values["causal_mfu"]),
      )
      for mode, values in found.items()
  ]
  first, *others = found.items()
  prices = [
      f"price of {mode}: {100 * (values['ms'] / first[1]['ms'] - 1):.1f} %"
      for mode, values in others
  ]
  return [*child.lines_of(rows, left={0}), *prices]


@pytest.mark.gpu
def test_step(run_alone, report):
  found = {
      mode: run_alone(check_step, xla_flags=flags, label=mode) for mode, flags in _MODES.items()
  }
  problems = [f"{m}: {p}" for m, f in found.items() for p in f.problems]
  values = {mode: f.values for mode, f in found.items()}
  report(child.Found([] if problems else render(values), {}, problems))


def test_render():
  one = {"ms": 10.0, "tokens_per_sec": 4e5, "mfu": 0.5, "causal_mfu": 0.45}
  other = one | {"ms": 11.0, "mfu": None, "causal_mfu": None}
  lines = render({"a": one, "b": other})
  assert lines[1].split() == ["a", "10.00", "400000", "50.0", "45.0"]
  assert lines[2].split() == ["b", "11.00", "400000", "-", "-"]
  assert lines[3] == "price of b: 10.0 %"
