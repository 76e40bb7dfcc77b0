"""All policies on one trace, and their values at several preemption rates.

A model like GPT-2 medium on 48 nodes in three zones, with the costs of one GPU
each and a network of 10 Gbit/s. `docs/simulator.md` says what is modelled.

configs/sim/compare.py        as it is
configs/sim/compare.py:quick  8 hours, 3 rates, 2 seeds
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = "") -> ml_collections.ConfigDict:
  """Returns the configuration; `variant` is "" or "quick"."""
  if variant not in ("", "quick"):
    raise ValueError(f"The variant must be quick or nothing, got {variant!r}.")
  config = config_dict.create(
      experiment="compare",
      seed=0,
      prices=config_dict.placeholder(str),  # Path; None: those of the project.
      instance="p3.2xlarge",
      price_date="2021",
      workload=dict(
          costs="transformer",  # Or "profile", "table".
          transformer=dict(  # Arguments of `sim.transformer`.
              num_blocks=24,
              width=1024,
              sequence_length=1024,
              vocab_size=50_257,
              flops_per_sec=4e13,
              link_bytes_per_sec=1.25e9,
          ),
          profile=config_dict.placeholder(str),  # Path, see `launch.profile`.
          link_bytes_per_sec=config_dict.placeholder(float),  # None: as there.
          table=dict(  # Throughput by number of nodes, see `sim`.
              path=config_dict.placeholder(str),
              column="samples_per_sec",
              samples_per_step=1024.0,
              where=dict(),  # Values that other columns must have.
          ),
          num_stages=8,
          num_microbatches=64,  # Per step, over all pipelines.
          microbatch_size=8,  # Samples.
          memory_limit_gib=config_dict.placeholder(float),  # Per node.
      ),
      durations=dict(  # Arguments of `sim.durations`, all in seconds.
          boot_secs=45.0,
          detect_secs=1.0,
          repair_secs=2.0,
          reconfigure_secs=10.0,
          restart_secs=40.0,
          load_secs=20.0,
          save_secs=30.0,
          stall_secs=1.0,
          save_every_secs=600.0,
      ),
      trace=dict(  # What is generated, see `launch.trace`.
          nodes_per_zone=(16, 16, 16),
          hours=24.0,
          hazard_per_node_hour=0.1,
          bulk_sizes=((1, 5.0), (2, 3.0), (4, 2.0)),
          zone_correlation=0.05,
          reacquire_secs=600.0,
          notice_secs=0.0,
      ),
      trace_file=dict(  # What is done to the file of --trace.
          num_nodes=config_dict.placeholder(int),  # None: as many as it has.
          time_scale=1.0,
      ),
      policies=_policies(),
      sweep=dict(
          field="trace.hazard_per_node_hour",  # Any field of this config.
          values=(0.01, 0.05, 0.1, 0.25, 0.5),
          num_seeds=10,
      ),
      num_processes=config_dict.placeholder(int),  # None: one for each core.
      plots=True,
  )
  if variant == "quick":
    config.trace.hours = 8.0
    config.sweep.values = (0.05, 0.25, 0.5)
    config.sweep.num_seeds = 2
  return config


def _policies() -> dict[str, dict[str, object]]:
  """Returns the settings of each policy, see `sim.policies.Settings`."""
  redundant = dict(mode="bubble", refresh="gradient", margin=0.25, budget=0.05)
  full = ("shadow", "peer", "reconfigure", "checkpoint")
  return dict(
      on_demand=dict(
          rungs=("checkpoint",), layout="depth", is_preemptible=False
      ),
      checkpoint=dict(
          rungs=("checkpoint",), layout="depth", placement="order"
      ),
      varuna=dict(rungs=("checkpoint",), layout="grid", placement="order"),
      sample_dropping=dict(rungs=("drop", "checkpoint"), layout="depth"),
      bamboo=dict(
          rungs=("shadow", "reconfigure", "checkpoint"),
          layout="depth",
          overprovision=1.5,
          placement="spread",  # Or "random", "cluster".
          redundant=redundant,
      ),
      oobleck=dict(rungs=("reconfigure", "checkpoint"), layout="templates"),
      recycle=dict(rungs=("peer", "checkpoint"), layout="depth"),
      full_with_shadows=dict(
          rungs=full, layout="templates", redundant=redundant
      ),
      full=dict(
          rungs=full, layout="templates", redundant=redundant | {"mode": "auto"}
      ),
  )
