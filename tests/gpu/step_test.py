"""How many tokens per second a whole step trains, and what sameness costs."""

import dataclasses

import jax
import pytest

from bamboo_jax.accounting import machines
from bamboo_jax.runtime.profile import products
from tests.gpu import child, program_times, settings as settings_lib, subject

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
  causal = full - unread_attention(plain)
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
  return child.Found(values)


def unread_attention(spec):
  """Returns the operations on scores that causal attention does not need.

  Of a forward pass of a GPT-2: half of its two products with scores.
  """
  num_examples, length = spec.batch["inputs"].shape
  shape = spec.model.fingerprint
  return shape["num_blocks"] * 2 * num_examples * length**2 * shape["width"]


@pytest.mark.gpu
def test_step(run_alone, report):
  found = {
      mode: run_alone(check_step, xla_flags=flags, label=mode) for mode, flags in _MODES.items()
  }
  problems = [f"{m}: {p}" for m, f in found.items() for p in f.problems]
  report(child.Found(problems=problems))
