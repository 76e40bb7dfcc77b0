"""Checks of the passes of a stage: their bits, their times, and their gradients.

`profiler` times an instruction in a row, for the planner. These measure how well the device is
used: calls are dispatched back to back, so that the host is not in the way, and every program is
compiled by itself.
"""

import dataclasses
import hashlib
import statistics
import time

import jax
import numpy as np

from bamboo_jax.accounting import machines
from bamboo_jax.runtime.profile import products, profiler, roofline
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from tests import plain
from tests.gpu import child, settings as settings_lib
from tests.runtime import engine_test as engines

_BURST_MS = 50.0  # Approximate time of back-to-back calls.
_MAX_BURST = 16  # Calls; their results may be in memory at once.
# Redundant passes beside each forward pass: none; kept on the device, which is
# another forward pass; or moved to host memory.
_WAYS = {"none": None, "device": "forward", "host": "redundant"}

_NUM_MICROBATCHES, _NUM_BLOCKS, _STEP = 3, 2, 5  # Of a pipeline of two stages.
# Precision of products, and the largest error that passes. Products of float32
# use TensorFloat-32 on GPUs unless they are told not to.
_CASES = {"float32": ("highest", 1e-5), "bfloat16": (None, 2e-2)}


class ModelBench:
  """A whole model with its state on the first device, to call its programs.

  The methods start one call and return what is ready when it has finished; call
  `forward` before `backward`, and `backward` before `update`. Programs are
  compiled when first used.
  """

  def __init__(self, spec, batch):
    unit, device = dataclasses.replace(spec, is_unit=True), jax.devices()[0]
    self._device = device
    self._programs = programs_lib.UnitPrograms(unit)
    place = jax.sharding.SingleDeviceSharding(device)
    init = lambda: spec_lib.take(unit, spec_lib.init_layers(unit))
    self._put(jax.jit(init, out_shardings=place)())
    self._batch = jax.device_put({key: batch[key] for key in spec.batch_keys}, device)
    self._zero = jax.device_put(np.uint32(0), device)
    self._one = jax.device_put(np.float32(1), device)
    self._token = jax.device_put(np.zeros((1,), np.int8), device)
    self.clear()

  def clear(self):
    """Starts a new sum of gradients."""
    self.total = self.program("zeros")(self._token)

  def program(self, name):
    """Returns a program, compiled; if training has no use for it, by its first call."""
    self._programs.compile(name, self._device)
    return getattr(self._programs, name)

  def forward(self):
    """Runs the forward pass."""
    done, _, self._saved = self.program("forward")(*self._given())
    return done

  def redundant(self):
    """Runs the redundant forward pass, whose results go to host memory."""
    return self.program("redundant")(*self._given())

  def _given(self):
    numbers = [self._zero] * 3
    return self._token, self._params, self._stats, None, self._batch, *numbers

  def backward(self):
    """Runs the backward pass of the last forward pass."""
    done, _, self.total = self.program("backward")(
        self._token, self._params, None, self._saved, None, self.total
    )
    return done

  def update(self):
    """Runs the optimizer on the sum of the backward passes, and casts."""
    params, slots = self._state.params, self._state.slots
    self._put(self.program("update")(params, slots, self.total, self._one, self._one))
    return self._state, self._params

  def _put(self, state):
    self._state, self._stats = state, state.stats
    self._params = self._programs.cast(state.params)


def time_calls(call, num_repeats):
  """Returns the time of one call among many, in ms, a median of warmed-up runs.

  `call` starts a program and returns results.
  """

  def milliseconds(num_calls):
    start = time.perf_counter()
    for _ in range(num_calls):
      result = call()
    jax.block_until_ready(result)
    return 1e3 * (time.perf_counter() - start) / num_calls

  milliseconds(2)
  alone_ms = statistics.median(milliseconds(1) for _ in range(num_repeats))
  burst = min(max(round(_BURST_MS / alone_ms), 1), _MAX_BURST)
  return statistics.median(milliseconds(burst) for _ in range(num_repeats))


def check_bits(settings):
  """Finds digests of all gradients and losses, and the times of the passes.

  The model has one block of full width: embedding, attention, MLP and head,
  thus products, reductions and, for the embedding, scattered sums. Without dropout
  attention is by the kernel of steps.
  """
  attention = None if settings.dropout_rate else settings.step_attention
  spec = settings_lib.make_whole(settings, num_blocks=1, attention=attention)
  bench = ModelBench(spec, settings_lib.make_microbatch(settings, 0))
  digests = []
  for _ in range(4):
    bench.clear()
    bench.forward()
    bench.backward()
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(bench.total):
      sha.update(np.ascontiguousarray(leaf).tobytes())
    digests.append(sha.hexdigest()[:16])
  times = {
      f"{name}_ms": time_calls(getattr(bench, name), settings.num_repeats)
      for name in ("forward", "backward")
  }
  return child.Found({"digests": digests, **times})


def _time_steps(settings, ways):
  """Returns the ms of a step of a whole GPT-2: passes, and those of a way beside, and update."""
  spec = settings_lib.make_whole(settings, attention=settings.step_attention)
  bench = ModelBench(spec, settings_lib.make_microbatch(settings, 0))

  def step(extra):
    for _ in range(settings.step_microbatches):
      if extra:
        getattr(bench, extra)()
      bench.forward()
      bench.backward()
    return bench.update()

  return [time_calls(lambda extra=extra: step(extra), settings.num_repeats) for extra in ways]


def _num_tokens(settings):
  return settings.microbatch_size * settings.sequence_length * settings.step_microbatches


def check_step(settings):
  """Finds how many tokens per second a whole step trains, and how well it uses the device."""
  settings = dataclasses.replace(settings, variant=settings.step_variant, dropout_rate=0.0)
  (ms,) = _time_steps(settings, [None])
  whole = settings_lib.make_whole(settings)  # Kernels are no products to count.
  full = sum(products.layer_flops(whole).values())
  # Causal attention does not need half of its two products with scores.
  num_examples, length = whole.batch["inputs"].shape
  shape = whole.model.fingerprint
  causal = full - shape["num_blocks"] * 2 * num_examples * length**2 * shape["width"]
  count = settings.step_microbatches * (1 + products.BACKWARD_FACTOR)
  kind = jax.devices()[0].device_kind
  peak = settings.peak_tflops or machines.find_peak_tflops(kind, dtype=settings.dtype)
  values = {"ms": ms, "tokens_per_sec": 1e3 * _num_tokens(settings) / ms}
  for name, flops in (("", full), ("causal_", causal)):
    values[f"{name}tflops"] = tflops = count * flops / ms / 1e9
    values[f"{name}mfu"] = tflops / peak if peak else None
  return child.Found(values)


def check_speed(settings):
  """Finds tokens per second with and without redundant passes, and predictions."""
  to_speed = lambda ms: 1e3 * _num_tokens(settings) / ms
  times_ms = _time_steps(settings, _WAYS.values())
  values = {f"{way}.tokens_per_sec": to_speed(ms) for way, ms in zip(_WAYS, times_ms, strict=True)}
  if facts := machines.find_kind(jax.devices()[0].device_kind):
    machine = machines.find_machine(facts["gpu"])
    whole = settings_lib.make_whole(settings)  # Its products can be counted.
    line = roofline.Roofline.of(whole, machine)
    layers = profiler.estimate(whole, line, fingerprint={}).layers
    count = settings.step_microbatches
    ms = sum(count * (c.forward_ms + c.backward_ms) + c.update_ms for c in layers)
    least, likely, most = (to_speed(ms / share) for share in machine.efficiency[:3])
    values["predicted"] = {"least": least, "likely": likely, "most": most}
  return child.Found(values)


def check_pipeline(settings):
  """Compares the gradients of a pipeline, whose nodes share one device, with plain ones.

  Both ends of every link are then the same device, as on a machine with one GPU
  or on a node that runs two stages after a failover.
  """
  values, problems = {}, []
  for dtype, (precision, limit) in _CASES.items():
    try:
      with jax.default_matmul_precision(precision):
        error = _gradient_error(settings, dtype=dtype)
    except Exception as error:  # The other dtype is to be tried all the same.
      problems.append(f"{dtype}: {child.describe(error)}")
      continue
    values[dtype] = error
    if not error <= limit:  # Also if it is not a number.
      problems.append(f"{dtype}: the error {error:.1e} is above {limit:g}")
  return child.Found(values, problems)


def _gradient_error(settings, *, dtype):
  """Returns max |pipelined - plain| / max |plain| over the whole gradient."""
  whole = settings_lib.make_whole(settings, dtype=dtype, num_blocks=_NUM_BLOCKS)
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  layers = jax.jit(lambda: spec_lib.init_layers(whole), out_shardings=place)()
  want, _, _ = plain.PlainModel(whole).grads(
      layers,
      lambda _, m: settings_lib.make_microbatch(settings, m),
      step=_STEP,
      microbatches=range(_NUM_MICROBATCHES),
  )
  middle = whole.units[len(whole.units) // 2].first
  engine = engines.build(whole.cut([0, middle, whole.last]), [(0, 1)], num_devices=1)
  engine.set_state(layers)
  make = lambda m: settings_lib.make_microbatch(settings, m)
  feed = lambda m, keys: {key: make(m)[key] for key in keys}
  engines.run(engine, feed, num_microbatches=_NUM_MICROBATCHES, step=_STEP)
  return float(plain.relative_error(engines.grads_of(engine), want))
