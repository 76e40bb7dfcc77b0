"""Times the programs of layers and of stages, one by one."""

import dataclasses
import gc

import jax
import jax.numpy as jnp
import pytest

from bamboo_jax.accounting import machines
from bamboo_jax.plan import cost_model, partition as partition_lib
from tests.gpu import child, mfu, program_times, settings as settings_lib, subject


def check_programs(settings):
  """Times each kind of layer, cuts stages by these times, and times those."""
  whole = subject.make_whole(settings)
  rates, problems = [], []

  def add(unit, first, last):
    spec = dataclasses.replace(whole, first=first, last=last, is_unit=True)
    try:
      found = _time_stage(settings, spec, unit)
    except Exception as error:  # Such as too little memory; the rest may fit.
      problems.append(f"{unit}: {child.describe(error)}")
      found = []
    rates.extend(found)
    gc.collect()
    return found

  try:
    rates.append(_time_product(settings))
  except Exception as error:
    problems.append(f"product: {child.describe(error)}")
  passes_ms = {}
  for layers in _layers_by_kind(whole):
    name = whole.model.layers[layers[0]].name.split(".")[-1]
    found = add(f"{name} x{len(layers)}", layers[0], layers[0] + 1)
    if found:
      passes_ms |= dict.fromkeys(layers, (found[0].ms, found[1].ms))
  partition = split_by_time(whole.model.layer_names, passes_ms, num_stages=settings.num_stages)
  stages = []
  for stage in range(settings.num_stages):
    layers = partition.layers(stage)
    stages += add(f"stage {stage} ({len(layers)} layers)", layers[0], layers[-1] + 1)
  if len(stages) == 3 * settings.num_stages:
    rates.append(add_up([r for r in stages if r.program != "update"]))
  return _report(settings, rates, problems)


def split_by_time(names, passes_ms, *, num_stages):
  """Returns the split whose slowest stage is the fastest.

  `passes_ms` has the times of forward and backward pass by layer; if some are
  missing, all layers count the same.
  """
  if len(passes_ms) < len(names):
    passes_ms = dict.fromkeys(range(len(names)), (1.0, 2.0))
  costs = [
      cost_model.LayerCost(
          name=name,
          forward_ms=passes_ms[i][0],
          backward_ms=passes_ms[i][1],
          update_ms=0.0,
          parameter_bytes=0,  # Bytes only matter under a limit.
          slot_bytes=0,
          activation_bytes=0,
          residual_bytes=0,
      )
      for i, name in enumerate(names)
  ]
  return partition_lib.split_layers(costs, num_stages=num_stages)


def add_up(rates):
  """Returns the rate of running these programs one after the other."""
  total = lambda name: sum(getattr(rate, name) for rate in rates)
  return mfu.ProgramRate(
      unit="all stages",
      program="1 microbatch",
      ms=total("ms"),
      alone_ms=total("alone_ms"),
      compile_secs=total("compile_secs"),
      model_flops=total("model_flops"),
      moved_bytes=total("moved_bytes"),
      temp_bytes=max(rate.temp_bytes for rate in rates),
  )


def _layers_by_kind(whole):
  """Returns the layers that compute the same, together."""
  groups = {}
  for index, (layer, inputs) in enumerate(
      zip(whole.layers, whole.model.input_shapes(whole.batch), strict=True)
  ):
    groups.setdefault((layer.kind, str(inputs)), []).append(index)
  return list(groups.values())


def _time_stage(settings, spec, unit):
  return program_times.time_stage(
      spec,
      unit=unit,
      batch=subject.make_microbatch(settings, 0),
      device=jax.devices()[0],
      num_repeats=settings.num_repeats,
  )


def _time_product(settings):
  """Returns the rate of a large product: what peak can be had here."""
  size, dtype = settings.product_size, jnp.dtype(settings.dtype)
  like = jax.ShapeDtypeStruct((size, size), dtype)
  pair = jax.jit(lambda: program_times.random_like((like, like)))()
  product = jax.jit(jnp.matmul)
  alone_ms, ms = program_times.time_calls(lambda: product(*pair), num_repeats=settings.num_repeats)
  return mfu.ProgramRate(
      unit=f"product {size}",
      program="matmul",
      ms=ms,
      alone_ms=alone_ms,
      compile_secs=0.0,
      model_flops=2 * size**3,
      moved_bytes=3 * size**2 * dtype.itemsize,
      temp_bytes=0,
  )


def _report(settings, rates, problems):
  kind = jax.devices()[0].device_kind
  peak = settings.peak_tflops
  if peak is None:
    peak = machines.find_peak_tflops(kind, dtype=settings.dtype)
  tokens = settings.microbatch_size * settings.sequence_length
  lines = child.lines_of(mfu.table_rows(rates, peak_tflops=peak), left={0, 1})
  lines += [
      f"peak of {kind!r}: "
      + (
          f"{peak:g} TFLOP/s, dense {settings.dtype}"
          if peak
          else "not known here; give it with --peak_tflops to see MFU"
      ),
      "GFLOP: products of the model, 2 per multiplication and addition; "
      "attention in full; backward = 2 x forward; nothing for recomputation, "
      "norms, softmax, dropout, update.",
      "MFU: GFLOP / ms / peak. ms: per call, calls back to back; alone ms: one "
      "call with its dispatch. GB/s: arguments and results only.",
  ]
  values = {"peak_tflops": peak, "rates": [_values(rate, peak) for rate in rates]}
  if rates and rates[-1].unit == "all stages":
    values["tokens_per_sec"] = 1e3 * tokens / rates[-1].ms
    lines.append(
        f"{values['tokens_per_sec']:.0f} tokens/s for all stages on this "
        f"device, without update and waits ({tokens} tokens per microbatch)."
    )
  return child.Found(lines, values, problems)


def _values(rate, peak):
  values = dataclasses.asdict(rate)
  values["tflops"] = rate.tflops
  values["mfu"] = rate.mfu(peak) if peak else None
  return values


@pytest.mark.gpu
def test_programs(run_alone, report):
  report(run_alone(check_programs))


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ({i: (1.0, 2.0) for i in range(4)}, (0, 2, 4)),
        ({0: (9, 9)} | {i: (1, 2) for i in (1, 2, 3)}, (0, 1, 4)),
        ({0: (9, 9)}, (0, 2, 4)),  # The others failed.
    ],
)
def test_split_by_time(times, want):
  assert split_by_time("abcd", times, num_stages=2).bounds == want


def test_add_up():
  rates = [
      mfu.ProgramRate(
          unit="stage 0",
          program="forward",
          ms=ms,
          alone_ms=2.5,
          compile_secs=1.0,
          model_flops=4 * 10**11,
          moved_bytes=10**9,
          temp_bytes=temp_bytes,
      )
      for ms, temp_bytes in ((2.0, 2**20), (6.0, 5))
  ]
  total = add_up(rates)
  assert (total.ms, total.temp_bytes) == (8.0, 2**20)
  assert round(total.tflops) == 100


def test_one_layer():  # Compiles three programs: about a second.
  whole = subject.make_whole(settings_lib.SMOKE)
  spec = dataclasses.replace(whole, first=2, last=3, is_unit=True)
  rates = _time_stage(settings_lib.SMOKE, spec, "mlp")
  programs = [rate.program for rate in rates]
  assert programs == ["forward", "backward", "update"]
  forward, backward, update = rates
  assert backward.model_flops == 2 * forward.model_flops
  assert update.model_flops == 0
