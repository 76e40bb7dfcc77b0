"""All policies on one trace, and their values at several preemption rates.

A model like GPT-2 medium on 48 nodes in three zones, with the costs of one GPU
each and a network of 10 Gbit/s. `docs/simulator.md` says what is modelled.

configs/sim/compare.py            as it is: all have the same choice of layouts
configs/sim/compare.py:planners   the layouts of the systems' own planners
configs/sim/compare.py:quick      8 hours, 3 rates, 5 seeds
configs/sim/compare.py:single     11 nodes, one pipeline needs most of them

Variants can be joined, as in `single,planners`.
"""

import ml_collections
from ml_collections import config_dict


def get_config(variant: str = "") -> ml_collections.ConfigDict:
  """Returns the configuration; see above for `variant`."""
  variants = {*variant.split(",")} - {""}
  if unknown := variants - {"planners", "quick", "single"}:
    raise ValueError(
        "A variant must be planners, quick or single, got "
        f"{', '.join(sorted(unknown))}."
    )
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
              where=dict(  # Values that other columns must have.
                  model=config_dict.placeholder(str),  # None: any.
              ),
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
      policies=_own_planners() if "planners" in variants else _policies(),
      sweep=dict(
          field="trace.hazard_per_node_hour",  # Any field of this config.
          values=(0.01, 0.05, 0.1, 0.25, 0.5),
          num_seeds=5,
      ),
      num_processes=config_dict.placeholder(int),  # None: one for each core.
      plots=True,
  )
  if "quick" in variants:
    config.trace.hours = 8.0
    config.sweep.values = (0.05, 0.25, 0.5)
  if "single" in variants:
    config.trace.nodes_per_zone = (4, 4, 3)
    config.workload.memory_limit_gib = 1.6
    for settings in config.policies.values():
      settings.num_failures = 0  # There are no two pipelines to lose one of.
      if "planners" in variants:
        settings.depths = (1.0, 1.25)
        settings.overprovision = min(1.25, settings.overprovision)
  return config


_FULL = ("shadow", "reroute", "reconfigure", "checkpoint")


def _policies() -> dict[str, dict[str, object]]:
  """Returns policies that differ in how they recover, and not in layouts."""
  return dict(
      on_demand=_policy(rungs=("checkpoint",), is_preemptible=False),
      checkpoint=_policy(rungs=("checkpoint",)),
      sample_dropping=_policy(rungs=("drop", "checkpoint")),
      bamboo=_policy(rungs=("shadow", "reconfigure", "checkpoint")),
      reconfigure=_policy(rungs=("reconfigure", "checkpoint")),
      recycle=_policy(rungs=("reroute", "checkpoint")),
      full_with_shadows=_policy(rungs=_FULL),
      full=_policy(rungs=_FULL, mode="auto"),
  )


def _own_planners() -> dict[str, dict[str, object]]:
  """Returns policies with the layouts that the systems have."""
  return dict(
      on_demand=_policy(
          rungs=("checkpoint",), layout="depth", is_preemptible=False
      ),
      checkpoint=_policy(
          rungs=("checkpoint",), layout="depth", placement="order"
      ),
      varuna=_policy(rungs=("checkpoint",), layout="grid", placement="order"),
      sample_dropping=_policy(rungs=("drop", "checkpoint"), layout="depth"),
      bamboo=_policy(
          rungs=("shadow", "reconfigure", "checkpoint"),
          layout="depth",
          overprovision=1.5,
      ),
      oobleck=_policy(rungs=("reconfigure", "checkpoint"), layout="templates"),
      recycle=_policy(rungs=("reroute", "checkpoint"), layout="depth"),
      parcae=_policy(rungs=("reconfigure", "checkpoint"), layout="liveput"),
      full_with_shadows=_policy(rungs=_FULL, layout="templates", use_all=False),
      full=_policy(rungs=_FULL, mode="auto", layout="templates", use_all=False),
  )


def _policy(*, mode: str = "bubble", **changes: object) -> dict[str, object]:
  """Returns all settings of a policy, see `sim.policies.Settings`."""
  return (
      dict(
          rungs=(),  # Of those of `full`, and "drop".
          layout="grid",  # Or "depth", "templates", "liveput".
          overprovision=1.0,  # Times the stages of the workload.
          max_pipelines=config_dict.placeholder(int),  # Of "depth".
          depths=(
              0.5,
              0.75,
              1.0,
              1.25,
              1.5,
          ),  # Of "grid", "liveput", times the stages.
          num_failures=1,  # That "templates" bear at once.
          method="replanning",  # Of "templates": or "rules".
          use_all=True,  # Of "templates": even if fewer nodes are faster.
          placement="spread",  # Or "order", "random", "cluster".
          redundant=dict(  # With the rung "shadow".
              mode=mode,  # Or "lazy", "budget", "eager", "auto".
              refresh="gradient",  # Or "state".
              margin=0.25,  # By which waits are longer than what fills them.
              budget=0.05,  # Of "budget": by how much a step may be longer.
          ),
          communication=dict(
              reduction="ring",  # Or "tree", "ordered" as this runtime does.
              overlap="drain",  # Or "none", or "backward", layer by layer.
              duplex="full",  # Or "half": sends and receives share a link.
          ),
          reroute="stage",  # Or "pipeline", as clusters do.
          fold=False,  # A pipeline of fewer nodes does not fit in memory.
          hand_over=False,  # Who has been given notice hands over.
          rereplicate="at_commit",  # Or "at_repair".
          horizon_secs=600.0,  # In which a change must pay.
          is_preemptible=True,
      )
      | changes
  )
