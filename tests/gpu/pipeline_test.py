"""Whether a pipeline whose nodes all share one device computes the gradient.

Both ends of every link are then the same device, as on a machine with one GPU
or on a node that runs two stages after a failover.
"""

import dataclasses

import jax
import pytest

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead, reduce
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import timeline as timeline_lib
from tests import plain, schedules
from tests.gpu import child, subject

_NUM_STAGES = 2
_NUM_MICROBATCHES = 3
_NUM_BLOCKS = 2
_STEP = 5

# Precision of products, and the largest error that passes. Products of float32
# use TensorFloat-32 on GPUs unless they are told not to.
_CASES = {"float32": ("highest", 1e-5), "bfloat16": (None, 2e-2)}


def check_pipeline(settings):
  """Compares pipelined and plain gradients for each dtype."""
  values, problems = {}, []
  for dtype, (precision, limit) in _CASES.items():
    old = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", precision)
    try:
      error = gradient_error(settings, dtype=dtype)
    except Exception as error:  # The other dtype is to be tried all the same.
      problems.append(f"{dtype}: {child.describe(error)}")
      continue
    finally:
      jax.config.update("jax_default_matmul_precision", old)
    values[dtype] = error
    if not error <= limit:  # Also if it is not a number.
      problems.append(f"{dtype}: the error {error:.1e} is above {limit:g}")
  return child.Found(values, problems)


def gradient_error(settings, *, dtype):
  """Returns max |pipelined - plain| / max |plain| over the whole gradient."""
  whole = subject.make_whole(settings, dtype=dtype, num_blocks=_NUM_BLOCKS)
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  layers = jax.jit(lambda: spec_lib.init_layers(whole), out_shardings=place)()
  want, _, _ = plain.PlainModel(whole).grads(
      layers,
      lambda _, m: subject.make_microbatch(settings, m),
      step=_STEP,
      microbatches=range(_NUM_MICROBATCHES),
  )
  return float(plain.relative_error(_pipelined_grads(settings, whole, layers), want))


def _pipelined_grads(settings, whole, layers):
  """Returns the gradients of a step on nodes that share a device."""
  cut = whole.units[len(whole.units) // 2].first
  device = jax.devices()[0]
  owners = range(_NUM_STAGES)
  engine = engine_lib.Engine(
      [dataclasses.replace(whole, last=cut), dataclasses.replace(whole, first=cut)],
      owners=[owners],
      devices=dict.fromkeys(owners, device),
      num_shares=1,
  )
  compile_ahead.compile_all(engine, evaluate=False)
  engine.set_state(layers)
  rows = schedules.make_timeline(owners, range(_NUM_MICROBATCHES))

  def feed(microbatch, keys):
    batch = subject.make_microbatch(settings, microbatch)
    return {key: batch[key] for key in keys}

  engine.begin_step(_STEP, feed, num_microbatches=_NUM_MICROBATCHES)
  engine.compute(timeline_lib.linearize([rows]))
  reduce.tie(engine)
  reduce.reduce(engine)
  engine.wait()
  return {
      name: grads
      for first, totals in engine.results.totals.items()
      for name, grads in zip(engine.units[first].names, totals[device].grads, strict=True)
  }


@pytest.mark.gpu
def test_pipeline(run_alone, report):
  report(run_alone(check_pipeline))
