"""Makes the values of the library from `configs/sim/compare.py`.

An unreadable file is an `OSError`; a setting that is unknown, out of range or
does not fit is a `ValueError` that names it.
"""

from collections.abc import Mapping
import dataclasses
import functools
import importlib
import json
import math
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.accounting import machines, prices as prices_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.sim import (
    loop,
    policies as policies_lib,
    speed as speed_lib,
    times as times_lib,
    transformer,
)
from bamboo_jax.traces import (
    generator,
    parameters as trace_parameters,
    readers,
    scale,
    trace as trace_lib,
)

Trace = trace_lib.Trace
Profile = cost_model.Profile

Config = Mapping[str, Any]  # A config as plain values.

_COSTS = ("transformer", "profile", "table")

# Keys that `place` sets from data sheets.
OF_INSTANCE = tuple(
    f"workload.{key}"
    for key in (
        *("gpus_per_node", "inner_bytes_per_sec", "memory_limit_gib"),
        *("transformer.flops_per_sec", "transformer.bytes_per_sec"),
        *("transformer.link_bytes_per_sec", "transformer.host_bytes_per_sec"),
    )
)
# Other names of workload fields in the config.
_SAME = (
    *("num_stages", "num_microbatches", "microbatch_size"),
    *("gpus_per_node", "inner_bytes_per_sec"),
)


def load_plugins(config: Config) -> None:
  """Imports the modules of the config that register policies or layouts."""
  for name in config["plugins"]:
    try:
      importlib.import_module(name)
    except ModuleNotFoundError as error:
      raise ValueError(
          f"config.plugins: {error}; a plugin must be in the working directory " "or on PYTHONPATH."
      ) from error
    except Exception as error:  # Any error of its code.
      raise ValueError(
          f"config.plugins: {name!r} cannot be imported: " f"{type(error).__name__}: {error}"
      ) from error


def make_trace(config: Config, *, path: str | None, seed: int) -> Trace:
  """Returns the trace of a file, or a generated one if `path` is None."""
  if path is None:
    parameters = json_lib.from_plain(
        trace_parameters.Parameters, config["trace"], where="config.trace"
    )
    return generator.generate_trace(parameters, seed=seed)
  return scale.scale(readers.read_traces([path]), **config["trace_file"])


def is_of_instance(config: Config) -> bool:
  """Returns whether speeds and memory are from the instance's data sheet."""
  workload = config["workload"]
  if workload["of_instance"] is not None:
    return bool(workload["of_instance"])
  is_other = bool(config["instance"] != workload["speeds_of"])
  return is_other and workload["costs"] == "transformer"


def place(config: Config) -> Config:
  """Returns the config with the workload on nodes of the instance."""
  _find_price(config)  # Raises with a list of all instances that have a price.
  if not is_of_instance(config):
    return config
  try:
    workload = machines.apply(config["workload"], config["instance"])
  except ValueError as error:
    raise ValueError(
        f"{error} Or set config.workload.of_instance=False and the speeds in " "config.workload."
    ) from error
  return {**config, "workload": workload}


def _find_price(config: Config) -> prices_lib.Price:
  return prices_lib.find_price(
      config["instance"], prices=config["prices"], date=config["price_date"] or None
  )


def make_price(config: Config) -> prices_lib.Price:
  """Returns the price of the instance; checks that the workload fits."""
  price = _find_price(config)
  workload = config["workload"]
  count = workload["gpus_per_node"]
  if workload["costs"] == "transformer" and price.gpu_count != count:
    raise ValueError(
        f"Instance {price.instance!r} has {price.gpu_count} GPUs, but "
        f"config.workload.gpus_per_node is {count}: set it, and flops_per_sec "
        "to what one of them reaches, or config.workload.of_instance."
    )
  return price


def make_choices(config: Config, name: str) -> tuple[loop.Policy, ...]:
  """Returns the candidates for a policy of the config, see `policies`."""
  parts = ("durations", "policies", "seed", "workload")
  return _make_choices(name, json.dumps({k: config[k] for k in parts}))


@functools.cache
def _make_choices(name: str, config: str) -> tuple[loop.Policy, ...]:
  """Caches `make_choices` by JSON, since policies cache their plans."""
  options = json.loads(config)
  return policies_lib.make_choices(
      name,
      _make_settings(name, options["policies"][name]),
      _make_workload(options["workload"]),
      json_lib.from_plain(times_lib.Durations, options["durations"], where="config.durations"),
      seed=options["seed"],
  )


def _make_settings(name: str, options: Config) -> policies_lib.Settings:
  redundant = {"mode": "bubble"} | options.get("redundant", {})
  return json_lib.from_plain(
      policies_lib.Settings, {**options, "redundant": redundant}, where=f"Policy {name!r}"
  )


def _make_workload(options: Config) -> policies_lib.Workload:
  if options["costs"] not in _COSTS:
    raise ValueError(base.suggest(options["costs"], _COSTS, what="costs"))
  limit_gib = options["memory_limit_gib"]
  if limit_gib is not None and not 0 < limit_gib < math.inf:
    raise ValueError(f"config.workload.memory_limit_gib must be above 0, got {limit_gib}.")
  return policies_lib.Workload(
      costs=_make_costs(options),
      memory_limit_bytes=None if limit_gib is None else int(limit_gib * 2**30),
      **{name: options[name] for name in _SAME},
  )


def _make_costs(options: Config) -> Profile | speed_lib.Table:
  if options["costs"] == "transformer":
    values = options["transformer"]
    values = {**values, "microbatch_size": options["microbatch_size"]}
    base.check_options(transformer.estimate_transformer, values, what="transformer")
    # A node does the work, which its GPUs share.
    for rate in ("flops_per_sec", "host_bytes_per_sec"):
      if rate in values:
        values[rate] *= options["gpus_per_node"]
    return transformer.estimate_transformer(**values)
  if options["costs"] == "table":
    values = options["table"]
    return speed_lib.read_table(
        _need(values["path"], "table.path"),
        column=values["column"],
        samples_per_step=values["samples_per_step"],
        where={k: v for k, v in values["where"].items() if v is not None},
    )
  path = _need(options["profile"], "profile")
  profile = cost_model.from_json(pathlib.Path(path).read_text(encoding="utf-8-sig"), source=path)
  _check_batch(profile, options["microbatch_size"], path)
  if (rate := options["link_bytes_per_sec"]) is not None:
    profile = dataclasses.replace(
        profile, link_bytes_per_ms=rate / 1e3, reduce_bytes_per_ms=rate / 1e3
    )
  return profile


def _need(path: str | None, name: str) -> str:
  if path is None:
    raise ValueError(f"config.workload.{name} must name a file.")
  return path


def _check_batch(profile: Profile, microbatch_size: int, path: str) -> None:
  for name, entry in profile.fingerprint.get("batch", {}).items():
    if len(entry) > 1 and entry[1] != microbatch_size:
      raise ValueError(
          f"{path} was measured with {json.dumps({name: entry})}, so "
          f"config.workload.microbatch_size must be {entry[1]}, got "
          f"{microbatch_size}."
      )
