"""GPT-2 small on 8 nodes: 2 pipelines of 4 stages.

Every option is here, with its unit; other configs start from this one. Options
that may be None are references of `ml_collections`, such as placeholders.
"""

from typing import Any

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
  """Returns the default configuration."""
  return config_dict.create(
      seed=0,
      num_steps=1_000,
      # Folder of weights, see docs/models.md; None: initialised from the seed.
      init_from=config_dict.placeholder(str),
      plugins=(),  # Modules that register policies; see docs/paced.md.
      **_task(),
      **_pipelines(),
      **_protection(),
      **_training(),
      **_surroundings(),
  )


def _task() -> dict[str, Any]:
  """Returns the sections on the model and its data."""
  return dict(
      model=dict(
          name="gpt2",  # A key of `models.zoo`.
          options=dict(  # Arguments of the model; see its docstring.
              variant="small",
              vocab_size=256,  # 256 for bytes.
              sequence_length=1024,
          ),
          prng="threefry2x32",  # Random generator of dropout; or "rbg".
      ),
      data=dict(
          name="stdlib_text",  # A name in `data.source`.
          options=dict(),  # Arguments of the source; see its docstring.
          prefetch_steps=1,  # Steps prepared ahead.
      ),
  )


def _pipelines() -> dict[str, Any]:
  """Returns the sections on pipelines and nodes."""
  return dict(
      pipeline=dict(
          executor="rows",  # Or "spmd": passes are programs in lockstep.
          layout="depth",  # Pipelines of num_stages; or "templates", "grid".
          ticks="paired",  # Of "spmd"; or "single", one pass per tick.
          # Ticks of a program of "spmd"; None: num_stages.
          segment_ticks=config_dict.placeholder(int),
          head="backward",  # Of "spmd": pass of head and loss; or "forward".
          num_pipelines=2,
          num_stages=4,
          num_microbatches=8,  # Per pipeline and step.
          # Samples. BERT's loss of pairs depends on it, see docs/models.md.
          microbatch_size=1,
          # Parts of a batch that are summed separately; None: num_pipelines.
          num_shares=config_dict.placeholder(int),
          schedule="1f1b",  # Or "gpipe".
          remat="full",  # Or "dots", "inputs"; by layer: "mlp=inputs".
          unit="block",  # Compiled together; or "layer", "stage".
      ),
      node=dict(  # On GPUs; see docs/gpu.md.
          deterministic=True,  # Programs give the same bits every time; slower.
          mesh=dict(data=1, tensor=1),  # Devices per node, on any platform.
      ),
  )


def _protection() -> dict[str, Any]:
  """Returns the sections on redundancy and recovery."""
  return dict(
      redundancy=dict(
          mode="none",  # Or "lazy", "bubble", "budget", "eager".
          margin=0.25,  # Share by which a wait must exceed passes put in it.
          budget=0.05,  # Of "budget": allowed increase of a step's time.
          refresh="gradient",  # Sent to replicas each step; or "state".
          slots="device",  # Memory of replicas' optimizer slots; or "host".
          # Per node; None: no limit.
          host_memory_gib=config_dict.placeholder(float),
          spares=0,  # Nodes that replace lost ones.
          rereplicate="at_commit",  # Or "at_repair", when a spare joins.
          check_every_steps=10,  # Compares copies; 0: only after repairs.
      ),
      recovery=dict(  # The rung "shadow" depends on redundancy.mode.
          # Name of a policy that sets the options below; None: keeps them.
          policy=config_dict.placeholder(str),
          reroute="pipeline",  # Who computes lost stages; or "shares", "none".
          drop=False,  # Drops the samples of lost pipelines.
          is_preemptible=True,  # Otherwise faults and traces cannot kill nodes.
          reconfigure=True,  # Forms new pipelines from live copies.
          checkpoint=True,  # Returns to the last checkpoint.
          fold=True,  # With few nodes, each owns several stages.
          hand_over=True,  # Nodes with notice give up their stages first.
          num_failures=1,  # Failures that layout "templates" survives.
          method="replanning",  # How it adapts pipelines; or "rules".
          horizon_secs=600.0,  # New pipelines must pay off within this time.
          refill=True,  # They are considered if spares can fill all places,
          max_doubled=0.05,  # if a larger share of nodes owns two stages,
          grow=True,  # or if there are nodes for one more pipeline.
          preconnect=True,  # Connects nodes before they need each other.
      ),
  )


def _training() -> dict[str, Any]:
  """Returns the sections on the plan, optimizer, evaluation, checkpoints."""
  return dict(
      plan=dict(
          profile=config_dict.placeholder(str),  # Path; None: estimated.
          balance="compute",  # Balances stages; or "memory".
          # Per device; None: no limit.
          memory_limit_gib=config_dict.placeholder(float),
      ),
      optimizer=dict(
          name="adamw",  # A function of optax.
          options=dict(weight_decay=0.1),  # Its other arguments.
          decay="all",  # Or "matrices": no decay of norms and biases.
          learning_rate=3e-4,  # Peak, if there is a schedule.
          schedule="warmup_cosine_decay_schedule",  # Of optax; or "constant".
          schedule_options=dict(  # Arguments of the schedule, see optax.
              init_value=0.0,
              warmup_steps=100,
              decay_steps=config_dict.placeholder(int),  # None: num_steps.
          ),
          # Global norm of the gradient; None: no clipping.
          clip_norm=config_dict.FieldReference(1.0),
          on_nonfinite="skip",  # Steps with NaN or inf; or "stop", "apply".
      ),
      evaluate=dict(
          every_steps=100,  # 0: never.
          num_microbatches=16,
      ),
      checkpoint=dict(
          every_steps=100,  # 0: only at the end.
          keep=2,
      ),
  )


def _surroundings() -> dict[str, Any]:
  """Returns the sections on the cluster, prices and logs."""
  return dict(
      cluster=dict(  # Processes of nodes; see docs/cluster.md.
          heartbeat_secs=0.1,  # Interval of heartbeats.
          stopped_secs=1.0,  # Limit for a stopped worker (SIGSTOP).
          least_silence_secs=3.0,  # Silence of an agent that is never a death.
          most_silence_secs=10.0,  # Silence of agent or worker that always is.
          silence_factor=4.0,  # In between: times the longest recent gap.
          start_silence_secs=60.0,  # Limit for a starting worker.
          no_progress_secs=60.0,  # Limit for a live worker that hangs.
          gather_secs=300.0,  # Then a run starts with the nodes present.
          num_watchers=8,  # Nodes that receive the heartbeats of a node.
          mesh_nodes=64,  # Above it each node connects only to some others.
      ),
      cost=dict(
          # Instance type whose price a node costs; None: no dollars are shown.
          instance=config_dict.placeholder(str),
          market="spot",  # Or "on_demand".
          prices=config_dict.placeholder(str),  # File; None: the package's.
          # These may be of one instance alone, such as "p3.2xlarge:2021".
          region=config_dict.placeholder(str),  # None: the only one.
          date=config_dict.placeholder(str),  # Of the price; None: newest.
      ),
      metrics=dict(
          trace_steps=4,  # Last steps to keep in trace.json.
          plots=True,
          figure_format="png",  # Or "pdf", "svg", or several: "png,pdf".
          tensorboard=False,  # Needs the extra `tensorboard`.
      ),
  )
