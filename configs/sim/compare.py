"""All policies on one trace, and their values at several preemption rates.

A model like GPT-2 medium on 48 nodes in three zones, with the costs of one GPU
each and a network of 10 Gbit/s. What is modelled: `docs/research/simulator.md`.

configs/sim/compare.py            all have the same choice of layouts
configs/sim/compare.py:planners   the layouts of the systems' own planners
configs/sim/compare.py:quick      8 hours, 3 rates, 5 seeds
configs/sim/compare.py:single     11 nodes, one pipeline needs most of them

Variants can be combined, as in `single,planners`.
"""

from collections.abc import Mapping
import dataclasses

import ml_collections
from ml_collections import config_dict

from bamboo_jax.sim import policies as policies_lib, presets, times as times_lib


def get_config(variant: str = "") -> ml_collections.ConfigDict:
  """Returns the configuration; see above for `variant`."""
  variants = {*variant.split(",")} - {""}
  if unknown := variants - {"planners", "quick", "single"}:
    raise ValueError(
        "A variant must be planners, quick or single, got " f"{', '.join(sorted(unknown))}."
    )
  config = config_dict.create(
      experiment="compare",
      seed=0,
      prices=config_dict.placeholder(str),  # Path; None: the package's.
      instance="p3.2xlarge",
      # Of one instance (others: the newest), or of all, such as "2025".
      price_date="p3.2xlarge:2021",
      workload=_make_workload(),
      durations=dataclasses.asdict(times_lib.Durations()),  # In seconds.
      trace=dict(  # Of the generated trace, see `bamboo trace`.
          nodes_per_zone=(16, 16, 16),
          hours=24.0,
          hazard_per_node_hour=0.1,
          bulk_sizes=((1, 5.0), (2, 3.0), (4, 2.0)),
          zone_correlation=0.05,
          reacquire_secs=600.0,
          notice_secs=0.0,
      ),
      trace_file=dict(  # Changes to the file of --trace.
          num_nodes=config_dict.placeholder(int), time_scale=1.0  # None: as in the file.
      ),
      # Modules that register policies, see docs/research/simulator.md.
      plugins=(),
      policies=_plain(presets.PLANNERS if "planners" in variants else presets.POLICIES),
      sweep=dict(
          field="trace.hazard_per_node_hour",  # Any field of this config.
          values=(0.01, 0.05, 0.1, 0.25, 0.5),
          num_seeds=5,
      ),
      plots=True,
  )
  if "quick" in variants:
    config.trace.hours = 8.0
    config.sweep.values = (0.05, 0.25, 0.5)
  if "single" in variants:
    _fit_one_pipeline(config, has_planners="planners" in variants)
  return config


def _make_workload() -> dict[str, object]:
  return dict(
      costs="transformer",  # Or "profile", "table".
      transformer=presets.TRANSFORMER,  # Arguments of `sim.transformer`.
      profile=config_dict.placeholder(str),  # Path, see `bamboo profile`.
      link_bytes_per_sec=config_dict.placeholder(float),  # None: the profile's.
      table=dict(  # Throughput by number of nodes, see `sim`.
          path=config_dict.placeholder(str),
          column="samples_per_sec",
          samples_per_step=1024.0,
          where=dict(  # Required values of other columns.
              model=config_dict.placeholder(str)  # None: any.
          ),
      ),
      **presets.JOB,  # Stages, microbatches per step, samples in each.
      # Whether speeds and memory are those of the instance; None: unless the
      # ones here are. They are of this one:
      of_instance=config_dict.placeholder(bool),
      speeds_of="p3.2xlarge",
      gpus_per_node=1,  # GPUs of the instance; flops_per_sec is per GPU.
      inner_bytes_per_sec=1.5e11,  # Between the GPUs of a node, each way.
      memory_limit_gib=config_dict.placeholder(float),  # Per node.
  )


def _fit_one_pipeline(config: ml_collections.ConfigDict, *, has_planners: bool) -> None:
  """Reduces the nodes so that one pipeline needs most of them."""
  config.trace.nodes_per_zone = (4, 4, 3)
  config.workload.memory_limit_gib = 1.6
  for settings in config.policies.values():
    settings.num_failures = 0  # There is no second pipeline to lose.
    if has_planners:
      settings.depths = (1.0, 1.25)
      settings.overprovision = min(1.25, settings.overprovision)


def _plain(policies: Mapping[str, policies_lib.Settings]) -> dict[str, object]:
  """Returns all settings of policies, see `sim.policies.Settings`."""
  found = {name: dataclasses.asdict(s) for name, s in policies.items()}
  for settings in found.values():
    settings["max_pipelines"] = config_dict.placeholder(int)
    for name in ("gpus_per_node", "inner_bytes_per_ms"):
      del settings["communication"][name]  # The workload sets it.
  return found
