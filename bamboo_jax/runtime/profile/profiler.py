"""The costs of the layers of a model: measured, or estimated by a roofline.

Programs belong to units, so one unit of each kind is measured, and its time is
divided among its layers in the proportions of the estimate. The link is that of a
cluster: the transport, between two nodes of this machine. An estimate runs and
compiles nothing: it counts the products of traced programs, see `roofline`.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import operator
import statistics
import time
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.profile import products, roofline as roofline_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import endpoints, links as links_lib, transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

_Number = TypeVar("_Number", int, float)
_Costs = Sequence[cost_model.LayerCost]
_WARMUP = 2  # Runs before those that count.
_SMALL, _LARGE = 1 << 10, 1 << 20  # Elements of arrays that are sent.
_PASS_SECS = 0.01  # Of the pass before a transfer.
_PER_REPEAT = 4  # Transfers of a size for each run of a program; their times vary more.
# A vote goes from a worker to its agent, to the other agents, and to their workers.
_VOTE_MESSAGES = 3


def measure(
    spec: spec_lib.StageSpec,
    *,
    batch: Mapping[str, np.ndarray],
    device: jax.Device,
    fingerprint: dict[str, Any],
    num_repeats: int = 9,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> cost_model.Profile:
  """Returns a measured profile: medians of programs after a warmup, means of transfers.

  Args:
    spec: The whole model as one stage.
    on_progress: Called with the layers done and their total number.
  """
  nothing, token = jax.jit(lambda a: a + 1), np.zeros((1,), np.int8)
  token = jax.device_put(token, device)
  times_ms = [_timed(nothing, token)[0] for _ in range(_WARMUP + num_repeats)]
  idle = statistics.median(times_ms[_WARMUP:])
  rates, cache = roofline_lib.assume(device.platform), programs_lib.ProgramCache()

  def find(unit: spec_lib.StageSpec) -> _Costs:
    found = _time_unit(unit, batch, device, num_repeats, idle)
    return _share_out(_estimate_layers(unit, rates, cache), **found)

  link = measure_link(device, _PER_REPEAT * num_repeats)
  return _make_profile(
      spec,
      find,
      on_progress,
      link=link,
      dispatch_ms=idle,
      vote_ms=_VOTE_MESSAGES * link.latency_ms,
      measured=True,
      fingerprint=fingerprint,
  )


def estimate(
    spec: spec_lib.StageSpec,
    rates: roofline_lib.Roofline,
    *,
    fingerprint: dict[str, Any],
    cache: programs_lib.ProgramCache | None = None,
) -> cost_model.Profile:
  """Returns a profile from counts of operations and bytes of `spec`, the whole model.

  `cache` may have traced programs of it, and keeps those that are traced here.
  """
  cache = cache or programs_lib.ProgramCache()

  def find(unit: spec_lib.StageSpec) -> _Costs:
    programs = cache.get(unit)
    kept = _residual_bytes(programs)
    # A backward pass may hold at once all that it recomputes of a unit, and the gradients.
    whole = kept
    if unit.remat != "full":
      whole = _residual_bytes(cache.get(dataclasses.replace(unit, remat="full")))
    working = whole + spec_lib.nbytes(unit.accumulator.grads)
    if unit.is_last:  # A forward pass has logits, maybe of a wider dtype.
      working = max(working, products.largest_product(programs.trace("forward").jaxpr))
    layers = _estimate_layers(unit, rates, cache)
    return _share_out(layers, residual_bytes=kept, working_bytes=working)

  return _make_profile(
      spec, find, link=rates.link, dispatch_ms=0.0, measured=False, fingerprint=fingerprint
  )


def _make_profile(
    spec: spec_lib.StageSpec,
    find: Callable[[spec_lib.StageSpec], _Costs],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    link: roofline_lib.LinkCost,
    **more: Any,
) -> cost_model.Profile:
  """Returns the profile of a model; `find` returns the costs of a unit's layers."""
  kinds: dict[Any, _Costs] = {}
  layers: list[cost_model.LayerCost] = []
  for unit in spec.units:
    if unit.kind not in kinds:
      kinds[unit.kind] = find(unit)
    layers += map(_at_pace, unit.single_layers, kinds[unit.kind])
    on_progress(unit.last - spec.first, spec.last - spec.first)
  ties = []
  for layer in spec.layers:
    for tie in layer.trained_ties:
      shared = spec.state[layer.name].params[tie.param]
      ties.append(cost_model.TieCost(tie.layer, layer.name, spec_lib.nbytes(shared)))
  return cost_model.Profile(
      layers=tuple(layers),
      link_latency_ms=link.latency_ms,
      link_bytes_per_ms=link.bytes_per_ms,
      reduce_latency_ms=link.latency_ms,
      reduce_bytes_per_ms=link.bytes_per_ms,
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


def _share_out(layers: _Costs, *, working_bytes: int, **totals: Any) -> _Costs:
  """Returns the costs of layers, which add up to the totals of their unit.

  These are divided in the proportions of the layers; the working memory of its
  programs is set on every layer.
  """
  for name, whole in totals.items():
    parts = _deal(whole, [getattr(layer, name) for layer in layers])
    layers = [dataclasses.replace(l, **{name: p}) for l, p in zip(layers, parts, strict=True)]
  return [dataclasses.replace(layer, working_bytes=working_bytes) for layer in layers]


def _deal(whole: _Number, weights: Sequence[float]) -> list[_Number]:
  """Divides `whole` in proportion to `weights`."""
  ends: Any = np.cumsum(weights) / (sum(weights) or 1)
  # No rounding at the last end: the parts add up.
  until = [type(whole)(whole * end) for end in (0.0, *ends[:-1])] + [whole]
  return [last - first for first, last in itertools.pairwise(until)]


def _at_pace(layer: spec_lib.StageSpec, cost: cost_model.LayerCost) -> cost_model.LayerCost:
  """Returns the costs of a layer of this kind, at least its pace."""
  pace, redundant_ms = layer.pace, cost.redundant_ms
  return dataclasses.replace(
      cost,
      name=layer.names[0],
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
) -> dict[str, Any]:
  """Returns times and sizes of a unit, by attribute of `LayerCost`."""
  programs = programs_lib.UnitPrograms(unit)
  times = collections.defaultdict[str, list[float]](list)

  def run(name: str, *args: Any) -> Any:
    ms, result = _timed(getattr(programs, name), *args)
    times[name].append(ms)
    return result

  state = spec_lib.take(unit, spec_lib.init_layers(unit))
  state = jax.device_put(state, device, may_alias=False)
  inputs, grad = _random(unit.inputs, device), _random(unit.outputs, device)
  facts = (unit.pick(batch), *[np.uint32(0)] * 3)
  facts, scale, token = jax.device_put((facts, np.float32(1), np.zeros((1,), np.int8)), device)
  total = run("zeros", token)
  for _ in range(_WARMUP + num_repeats):
    params = run("cast", state.params)
    _, _, saved = run("forward", token, params, state.stats, inputs, *facts)
    _, _, total = run("backward", token, params, inputs, saved, grad, total)
    run("norms", total)
    trained = spec_lib.without_frozen(unit, state)
    new = run("update", trained.params, trained.slots, total, scale, scale)
    state = spec_lib.add_frozen(new, state)
  # Each alone: cached leftovers would slow the other passes down.
  params = programs.cast(state.params)
  for _ in range(_WARMUP + num_repeats):
    run("redundant", token, params, state.stats, inputs, *facts)
  times["update"] = [*map(operator.add, times["update"], times["cast"])]
  median = lambda name: max(0.0, statistics.median(times[name][_WARMUP:]) - idle)
  compiled = [programs.compile(name, device) for name in ("forward", "backward")]
  analyses = [program and program.memory_analysis() for program in compiled]
  return dict(
      forward_ms=median("forward"),
      backward_ms=median("backward"),
      update_ms=median("update"),
      norm_ms=median("norms"),
      redundant_ms=0.0 if unit.is_last else median("redundant"),
      residual_bytes=_residual_bytes(programs),
      working_bytes=max(int(a.temp_size_in_bytes) if a else 0 for a in analyses),
      copy_bytes=programs.copy_bytes,
  )


def _estimate_layers(
    unit: spec_lib.StageSpec, rates: roofline_lib.Roofline, cache: programs_lib.ProgramCache
) -> _Costs:
  """Returns the costs of the layers of a unit, each traced alone."""
  costs = []
  for layer in unit.single_layers:
    programs, (state,) = cache.get(layer), layer.state.values()
    forward_ms, kept = rates.pass_ms(programs, "forward"), _residual_bytes(programs)
    copied_ms = kept / rates.host_bytes_per_ms
    param_bytes = spec_lib.nbytes(state.params)
    costs.append(
        cost_model.LayerCost(
            name=layer.names[0],
            forward_ms=forward_ms,
            backward_ms=rates.pass_ms(programs, "backward"),
            update_ms=rates.pass_ms(programs, "update"),
            norm_ms=rates.pass_ms(programs, "norms"),
            redundant_ms=0.0 if unit.is_last else forward_ms + copied_ms,
            residual_bytes=kept,
            copy_bytes=programs.copy_bytes,
            parameter_bytes=param_bytes,
            frozen_bytes=param_bytes - spec_lib.nbytes(layer.accumulator.grads),
            slot_bytes=spec_lib.nbytes(state.slots),
            activation_bytes=spec_lib.nbytes(layer.outputs),
        )
    )
  return costs


def _timed(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Returns the milliseconds until the result is ready, and the result."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return 1e3 * (time.perf_counter() - start), result


def measure_link(device: jax.Device, num_repeats: int) -> roofline_lib.LinkCost:
  """Returns the cost of a transfer between two nodes of this machine, both in this process.

  It lasts from the end of the pass that makes a value until that is on the other
  node's device.
  """
  nodes = tuple(base.nodes(2))
  ends = [
      transport_lib.Transport(node, run="profile", endpoint=endpoints.listen_unix())
      for node in nodes
  ]
  for end in ends:
    end.set_addresses({other.me: other.address for other in ends})
    end.begin(1)
  source, target = (links_lib.Links(end, lambda _: device) for end in ends)
  channel = channel_lib.Channel("activation", nodes)

  def find_ms(size: int) -> list[float]:
    value, times_ms = _random(jax.ShapeDtypeStruct((size,), np.float32), device), list[float]()
    for _ in range(_WARMUP + num_repeats):
      # As in a row: sent while its pass still runs, whose end wakes the thread that writes.
      # Threads that have waited take several times as long as in a loop that only sends.
      ready_secs = time.perf_counter() + _PASS_SECS
      source.send(channel, node_lib.Paced(value, ready_secs, ready_secs))
      jax.block_until_ready(target.receive(channel, value))
      times_ms.append(1e3 * (time.perf_counter() - ready_secs))
    return times_ms[_WARMUP:]

  try:
    return fit_link({4 * size: find_ms(size) for size in (_SMALL, _LARGE)})
  finally:
    for end in ends:
      end.close()


def fit_link(times_ms: Mapping[int, Sequence[float]]) -> roofline_lib.LinkCost:
  """Returns latency and rate from the times of two sizes in bytes."""
  (small, small_ms), (large, large_ms) = sorted(times_ms.items())
  extra_ms = statistics.median(large_ms) - statistics.median(small_ms)
  rate = (large - small) / max(extra_ms, 1e-6)  # At least 1 ns: noise.
  # Not the median: transfers follow each other in a step, so their times add up.
  return roofline_lib.LinkCost(statistics.fmean(small_ms), rate)
