"""The costs of the layers of a model: measured, or estimated by a roofline.

Programs belong to units, so one unit of each kind is measured, and its time is
divided among its layers in the proportions of the estimate. An estimate runs and
compiles nothing: it counts the products of traced programs, see `roofline`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import operator
import statistics
import time
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime.profile import products, roofline as roofline_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import links as links_lib

_Link = roofline_lib.LinkCost
_Number = TypeVar("_Number", int, float)


class _Costs(NamedTuple):
  """Milliseconds of the programs of a layer or unit, and its memory."""

  forward_ms: float
  backward_ms: float
  update_ms: float
  norm_ms: float
  redundant_ms: float
  residual_bytes: int
  working_bytes: int
  copy_bytes: int


def measure(
    spec: spec_lib.StageSpec,
    *,
    batch: Mapping[str, np.ndarray],
    devices: Sequence[jax.Device],
    fingerprint: dict[str, Any],
    num_repeats: int = 9,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> cost_model.Profile:
  """Returns a measured profile: medians of runs after a warmup.

  Args:
    spec: The whole model as one stage.
    devices: Where to measure; transfers and sums use the first two.
    on_progress: Called with the layers done and their total number.
  """
  nothing, token = jax.jit(lambda a: a + 1), np.zeros((1,), np.int8)
  token = jax.device_put(token, devices[0])
  idle = _median_ms(lambda: nothing(token), num_repeats)
  rates = roofline_lib.assume(devices[0].platform)
  seen, layers = {}, []
  for unit in spec.units:
    if unit.kind not in seen:
      costs = _time_unit(unit, batch, devices[0], num_repeats, idle)
      seen[unit.kind] = _share_out(costs, _estimate_layers(unit, rates))
    layers += _layer_costs(unit, seen[unit.kind])
    on_progress(unit.last - spec.first, spec.last - spec.first)
  return _make_profile(
      spec,
      layers,
      link=_time_link(devices, num_repeats),
      reduce=_time_reduce(devices, num_repeats),
      dispatch_ms=idle,
      measured=True,
      fingerprint=fingerprint,
  )


def estimate(
    spec: spec_lib.StageSpec, rates: roofline_lib.Roofline, *, fingerprint: dict[str, Any]
) -> cost_model.Profile:
  """Returns a profile from counts of operations and bytes of `spec`, the whole model."""
  seen, layers = {}, []
  for unit in spec.units:
    if unit.kind not in seen:
      programs = programs_lib.UnitPrograms(unit)
      kept = _residual_bytes(programs)
      # A backward pass may hold at once all that it recomputes of a unit, and the gradients.
      whole = kept
      if unit.remat != "full":
        full = dataclasses.replace(unit, remat="full")
        whole = _residual_bytes(programs_lib.UnitPrograms(full))
      working = whole + spec_lib.nbytes(unit.accumulator.grads)
      if unit.is_last:  # A forward pass has logits, maybe of a wider dtype.
        forward = programs.trace("forward").jaxpr
        working = max(working, products.largest_product(forward))
      seen[unit.kind] = _with_memory(
          _estimate_layers(unit, rates), residual_bytes=kept, working_bytes=working
      )
    layers += _layer_costs(unit, seen[unit.kind])
  return _make_profile(
      spec,
      layers,
      link=rates.link,
      reduce=rates.link,
      dispatch_ms=0.0,
      measured=False,
      fingerprint=fingerprint,
  )


def _make_profile(
    spec: spec_lib.StageSpec,
    layers: Sequence[cost_model.LayerCost],
    *,
    link: _Link,
    reduce: _Link,
    **more: Any,
) -> cost_model.Profile:
  ties = []
  for layer in spec.layers:
    for tie in layer.trained_ties:
      shared = spec.state[layer.name].params[tie.param]
      ties.append(cost_model.TieCost(tie.layer, layer.name, spec_lib.nbytes(shared)))
  return cost_model.Profile(
      layers=tuple(layers),
      link_latency_ms=link.latency_ms,
      link_bytes_per_ms=link.bytes_per_ms,
      reduce_latency_ms=reduce.latency_ms,
      reduce_bytes_per_ms=reduce.bytes_per_ms,
      ties=tuple(ties),
      **more,
  )


def fingerprint_of(spec: spec_lib.StageSpec, *, device: jax.Device) -> dict[str, Any]:
  """Returns everything that a profile depends on, as plain values."""
  return {
      "model": spec.model.fingerprint,
      "batch": {key: [str(np.dtype(a.dtype)), *a.shape] for key, a in sorted(spec.batch.items())},
      "remat": spec.remat,
      "prng": spec.prng,
      "slots": len(jax.tree.leaves([layer.slots for layer in spec.state.values()])),
      "device": f"{device.platform} {device.device_kind}",
      "versions": {"jax": jax.__version__},
  }


def _share_out(unit: _Costs, layers: Sequence[_Costs]) -> list[_Costs]:
  """Returns the costs of a unit, divided in the proportions of `layers`."""
  weights = zip(*layers, strict=True)
  dealt = map(_deal, unit, weights)
  return _with_memory(
      [_Costs(*share) for share in zip(*dealt, strict=True)],
      residual_bytes=unit.residual_bytes,
      working_bytes=unit.working_bytes,
  )


def _with_memory(
    layers: Sequence[_Costs], *, residual_bytes: int, working_bytes: int
) -> list[_Costs]:
  """Returns the costs of layers with the memory of their whole unit.

  Residuals are divided; the working memory of its programs is set on every
  layer.
  """
  dealt = _deal(residual_bytes, [layer.residual_bytes for layer in layers])
  return [
      layer._replace(residual_bytes=kept, working_bytes=working_bytes)
      for layer, kept in zip(layers, dealt, strict=True)
  ]


def _deal(whole: _Number, weights: Sequence[float]) -> list[_Number]:
  """Divides `whole` in proportion to `weights`."""
  ends: Any = np.cumsum(weights) / (sum(weights) or 1)
  # No rounding at the last end: the parts add up.
  until = [type(whole)(whole * end) for end in (0.0, *ends[:-1])] + [whole]
  return [last - first for first, last in itertools.pairwise(until)]


def _layer_costs(unit: spec_lib.StageSpec, costs: Sequence[_Costs]) -> list[cost_model.LayerCost]:
  if unit.is_last:
    costs = [cost._replace(redundant_ms=0.0) for cost in costs]
  return [
      cost_model.LayerCost(
          name=name,
          **_at_pace(cost, layer)._asdict(),
          parameter_bytes=spec_lib.nbytes(state.params),
          frozen_bytes=spec_lib.nbytes(state.params) - spec_lib.nbytes(layer.accumulator.grads),
          slot_bytes=spec_lib.nbytes(state.slots),
          activation_bytes=spec_lib.nbytes(layer.outputs),
      )
      for layer, cost in zip(unit.single_layers, costs, strict=True)
      for name, state in layer.state.items()
  ]


def _at_pace(cost: _Costs, layer: spec_lib.StageSpec) -> _Costs:
  """Returns the costs of a layer, at least its pace."""
  pace, redundant_ms = layer.pace, cost.redundant_ms
  return cost._replace(
      forward_ms=max(cost.forward_ms, pace.forward_ms),
      backward_ms=max(cost.backward_ms, pace.backward_ms),
      # 0: it is left out.
      redundant_ms=redundant_ms and max(redundant_ms, pace.forward_ms),
  )


def _residual_bytes(programs: programs_lib.UnitPrograms) -> int:
  return spec_lib.nbytes(programs.saved) + spec_lib.nbytes(programs.unit.inputs)


def _random(like: base.PyTree, device: jax.Device) -> base.PyTree:
  rng = np.random.default_rng(0)

  def make(a: jax.ShapeDtypeStruct) -> jax.Array:
    value = jnp.asarray(rng.standard_normal(a.shape), a.dtype)
    return jax.device_put(value, device, may_alias=False)

  return jax.tree.map(make, like)


def _time_unit(
    unit: spec_lib.StageSpec,
    batch: Mapping[str, np.ndarray],
    device: jax.Device,
    num_repeats: int,
    idle: float,
) -> _Costs:
  programs = programs_lib.UnitPrograms(unit)
  run = lambda name, *args: _timed(getattr(programs, name), *args)
  layers = spec_lib.take(unit, spec_lib.init_layers(unit))
  layers = jax.device_put(layers, device, may_alias=False)
  stats = tuple(layer.stats for layer in layers)
  inputs = _random(unit.inputs, device)
  batch = jax.device_put({k: batch[k] for k in unit.batch_keys}, device)
  grad = _random(unit.outputs, device)
  zero = jax.device_put(np.uint32(0), device)
  scale = jax.device_put(np.float32(1), device)
  token = jax.device_put(np.zeros((1,), np.int8), device)
  _, total = run("zeros", token)
  forward_ms, backward_ms, update_ms, norm_ms = [], [], [], []
  for _ in range(num_repeats + 2):  # 2 to warm up.
    cast_ms, params = _timed(programs.cast, tuple(layer.params for layer in layers))
    args = (token, params, stats, inputs, batch, zero, zero, zero)
    secs, (_, _, saved) = run("forward", *args)
    forward_ms.append(secs)
    args = (token, params, inputs, saved, grad, total)
    secs, (_, _, total) = run("backward", *args)
    backward_ms.append(secs)
    secs, _ = run("norms", total)
    norm_ms.append(secs)
    trained = spec_lib.drop_frozen(unit, [layer.params for layer in layers])
    slots = tuple(layer.slots for layer in layers)
    secs, new = run("update", trained, slots, total, scale, scale)
    layers = spec_lib.add_frozen(new, layers)
    stats = tuple(layer.stats for layer in layers)
    update_ms.append(secs + cast_ms)
  # Each alone: cached leftovers would slow the other passes down.
  params = programs.cast(tuple(layer.params for layer in layers))
  args = (token, params, stats, inputs, batch, zero, zero, zero)
  redundant_ms = [run("redundant", *args)[0] for _ in range(num_repeats + 2)]
  times = (forward_ms, backward_ms, update_ms, norm_ms, redundant_ms)
  medians = [max(0.0, statistics.median(ms[2:]) - idle) for ms in times]
  compiled = [programs.compile(name, device) for name in ("forward", "backward")]
  analyses = [program and program.memory_analysis() for program in compiled]
  working_bytes = max(int(a.temp_size_in_bytes) if a else 0 for a in analyses)
  kept, copied = _residual_bytes(programs), programs.copy_bytes
  return _Costs._make((*medians, kept, working_bytes, copied))


def _estimate_layers(unit: spec_lib.StageSpec, rates: roofline_lib.Roofline) -> list[_Costs]:
  """Returns the costs of the layers of a unit, each compiled alone."""
  costs = []
  for layer in unit.single_layers:
    programs = programs_lib.UnitPrograms(layer)
    names = ("forward", "backward", "update", "norms")
    times = [rates.pass_ms(programs, name) for name in names]
    kept = _residual_bytes(programs)
    redundant_ms = times[0] + kept / rates.host_bytes_per_ms
    given = (*times, redundant_ms, kept, 0, programs.copy_bytes)
    costs.append(_Costs._make(given))
  return costs


def _timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Returns the milliseconds until the result is ready, and the result."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return 1e3 * (time.perf_counter() - start), result


def _median_ms(function: Callable[[], Any], num_repeats: int) -> float:
  times = [_timed(function)[0] for _ in range(num_repeats + 2)]
  return statistics.median(times[2:])


_SMALL, _LARGE = 1 << 10, 1 << 22  # Elements.


def _slope(time_of: Callable[[int], float]) -> _Link:
  """Returns latency and rate from the times of two sizes of arrays."""
  small_ms, large_ms = time_of(_SMALL), time_of(_LARGE)
  extra_ms = max(large_ms - small_ms, 1e-6)  # At least 1 ns: noise.
  return _Link(small_ms, 4 * (_LARGE - _SMALL) / extra_ms)


def _time_link(devices: Sequence[jax.Device], num_repeats: int) -> _Link:
  source, destination = devices[0], devices[min(1, len(devices) - 1)]

  def time_of(size: int) -> float:
    like = jax.ShapeDtypeStruct((size,), np.float32)
    link = links_lib.LocalLink(destination)
    value = _random(like, source)

    def transfer() -> jax.Array:
      link.send(value)
      return link.receive()

    return _median_ms(transfer, num_repeats)

  return _slope(time_of)


def _time_reduce(devices: Sequence[jax.Device], num_repeats: int) -> _Link:
  holders = (devices[0], devices[min(1, len(devices) - 1)])
  add = jax.jit(operator.add)

  def time_of(size: int) -> float:
    like = jax.ShapeDtypeStruct((size,), np.float32)
    own, other = (_random(like, device) for device in holders)

    def reduce() -> tuple[jax.Array, jax.Array]:  # As `phases.reduce`.
      total = add(own, jax.device_put(other, holders[0]))
      return total, jax.device_put(total, holders[1])

    return _median_ms(reduce, num_repeats)

  return _slope(time_of)
