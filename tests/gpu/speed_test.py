"""Tokens per second with and without redundant passes, and predictions."""

import jax
import pytest

from bamboo_jax.accounting import machines
from bamboo_jax.runtime.profile import profiler, roofline
from tests.gpu import child, program_times, settings as settings_lib, subject

# Redundant passes beside each forward pass: none; kept on the device, which is
# another forward pass; or moved to host memory.
_WAYS = {"none": None, "device": "forward", "host": "redundant"}


def check_speed(settings):
  """Times steps of a whole GPT-2 on one device, by place of residuals."""
  spec = subject.make_whole(settings, attention=settings.step_attention)
  device = jax.devices()[0]
  bench = program_times.StageBench(spec, batch=subject.make_microbatch(settings, 0), device=device)
  count = settings.step_microbatches
  tokens = settings.microbatch_size * settings.sequence_length * count

  def step(extra):
    for _ in range(count):
      if extra:
        getattr(bench, extra)()
      bench.forward()
      bench.backward()
    return bench.update()

  values = {}
  for way, extra in _WAYS.items():
    _, ms = program_times.time_calls(
        lambda extra=extra: step(extra), num_repeats=settings.num_repeats
    )
    values[f"{way}.tokens_per_sec"] = 1e3 * tokens / ms
  plain = subject.make_whole(settings)  # Its products can be counted.
  predicted = predict(plain, device.device_kind, count)
  if predicted:
    least, likely, most = (1e3 * tokens / ms for ms in predicted)
    values["predicted"] = {"least": least, "likely": likely, "most": most}
  return child.Found(values)


def predict(spec, device_kind, count):
  """Returns the longest, likely and shortest time of a step, or None."""
  facts = machines.find_kind(device_kind)
  if facts is None:
    return None
  machine = machines.find_machine(facts["gpu"])
  profile = profiler.estimate(spec, roofline.Roofline.of(spec, machine), fingerprint={})
  layers = profile.layers
  ms = sum(count * (c.forward_ms + c.backward_ms) + c.update_ms for c in layers)
  return [ms / share for share in machine.efficiency[:3]]


@pytest.mark.gpu
def test_speed(run_alone, report, settings):
  problems = []
  for variant in settings.speed_variants.split(","):
    found = run_alone(check_speed, label=variant, variant=variant, dropout_rate=0.0)
    problems += [f"{variant}: {problem}" for problem in found.problems]
  report(child.Found(problems=problems))


def test_predict():
  spec = subject.make_whole(settings_lib.SMOKE)
  longest, likely, shortest = predict(spec, "NVIDIA H100 80GB HBM3", 2)
  assert 0 < shortest < likely < longest
  assert predict(spec, "cpu", 2) is None
