"""GPT-2 small on 8 nodes: 2 pipelines of 4 stages.

Every field is here, with its unit; other configs start from this one. Those
that may be None are references of `ml_collections`, such as placeholders. What
"file.py:function" may be, docs/own_parts.md tells.
"""

from typing import Any

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
  """Returns the default configuration."""
  return config_dict.create(
      seed=0,
      num_steps=1_000,
      # Folder of weights, see docs/models.md; None: from the seed.
      init_from=config_dict.placeholder(str),
      plugins=(),  # Modules that register policies; see docs/paced.md.
      **_task(),
      **_pipelines(),
      **_protection(),
      **_training(),
      **_surroundings(),
  )


def _task() -> dict[str, Any]:
  """Returns the sections on what is trained, and on what."""
  return dict(
      model=dict(
          name="gpt2",  # A key of `models.zoo`; or "file.py:function".
          options=dict(  # Arguments of that model; see its docstring.
              variant="small",
              vocab_size=256,  # Bytes.
              sequence_length=1024,
          ),
          prng="threefry2x32",  # Generator of dropout: or "rbg".
      ),
      data=dict(
          name="stdlib_text",  # In `data.source`; or "file.py:function".
          options=dict(),  # Arguments of that source; see its docstring.
          prefetch_steps=1,  # Prepared ahead.
      ),
  )


def _pipelines() -> dict[str, Any]:
  """Returns the sections on how the work is spread."""
  return dict(
      pipeline=dict(
          executor="rows",  # Or "spmd": passes are programs in lockstep.
          layout="depth",  # All of num_stages; or "templates", "grid".
          ticks="paired",  # Of "spmd": or "single", one pass in a tick.
          segment_ticks=config_dict.placeholder(int),  # None: num_stages.
          head="backward",  # Pass of head and loss in "spmd"; or "forward".
          num_pipelines=2,
          num_stages=4,
          num_microbatches=8,  # Per pipeline and step.
          # Samples. BERT's loss of pairs depends on it, see docs/models.md.
          microbatch_size=1,
          num_shares=config_dict.placeholder(int),  # None: num_pipelines.
          schedule="1f1b",  # Or "gpipe".
          remat="full",  # Or "dots", "inputs", or for some layers "mlp=inputs".
          unit="block",  # Shares programs; or "layer", "stage".
      ),
      node=dict(  # On GPUs; see docs/gpu.md.
          deterministic=True,  # Programs repeat their bits; costs time.
          mesh=dict(data=1, tensor=1),  # Devices of a node, on any platform.
      ),
  )


def _protection() -> dict[str, Any]:
  """Returns the sections on how deaths are prepared for, and what follows."""
  return dict(
      redundancy=dict(
          mode="none",  # Or "lazy", "bubble", "budget", "eager".
          margin=0.25,  # By which waits must be longer than what fills them.
          budget=0.05,  # Of "budget": by how much a step may be longer.
          refresh="gradient",  # What replicas get each step; or "state".
          slots="device",  # Where optimizer slots of replicas are; or "host".
          host_memory_gib=config_dict.placeholder(float),  # Per node; or None.
          spares=0,  # Nodes that take the places of lost ones.
          rereplicate="at_commit",  # Or "at_repair", when a spare comes.
          check_every_steps=10,  # All copies of layers; 0: only after repairs.
      ),
      recovery=dict(  # Shadows are a matter of redundancy.mode.
          # Name of a policy, or "file.py:function", that sets what follows;
          # None: it stays.
          policy=config_dict.placeholder(str),
          reroute="pipeline",  # Who computes for the lost; "shares", "none".
          drop=False,  # Samples of lost pipelines are left out.
          is_preemptible=True,  # Else faults and traces take no node.
          reconfigure=True,  # New pipelines are made from live copies.
          checkpoint=True,  # Training goes back to the last checkpoint.
          fold=True,  # With few nodes, each owns several stages.
          hand_over=True,  # Nodes that will be preempted give up their stages.
          num_failures=1,  # Templates make more pipelines than that,
          method="replanning",  # which follow the old so; or by "rules".
          horizon_secs=600.0,  # New pipelines must pay within this time.
          refill=True,  # They are considered if spares can take all places,
          max_doubled=0.05,  # if more of the nodes than this own two stages,
          grow=True,  # or if there are nodes for one pipeline more.
          preconnect=True,  # Nodes connect before they need each other.
      ),
  )


def _training() -> dict[str, Any]:
  """Returns the sections on planning, applying and keeping steps."""
  return dict(
      plan=dict(
          profile=config_dict.placeholder(str),  # Path; None: estimate.
          balance="compute",  # Or "memory".
          # Per device; None: no limit.
          memory_limit_gib=config_dict.placeholder(float),
      ),
      optimizer=dict(
          name="adamw",  # A function of optax; or "file.py:function".
          options=dict(weight_decay=0.1),  # Its other arguments.
          decay="all",  # Or "matrices": norms and biases do not decay.
          learning_rate=3e-4,  # The peak, if there is a schedule.
          schedule="warmup_cosine_decay_schedule",  # Or "constant", or own.
          schedule_options=dict(  # Arguments of that schedule, see optax.
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
      cluster=dict(  # Of real nodes; see docs/cluster.md.
          heartbeat_secs=0.1,  # Between two signs of life.
          stopped_secs=1.0,  # A stopped worker is given up after that.
          least_silence_secs=3.0,  # A shorter silence of an agent is no death.
          most_silence_secs=10.0,  # A longer one, also of a worker, is.
          silence_factor=4.0,  # Times the longest gap lately, in between.
          start_silence_secs=60.0,  # The same of a worker that starts.
          no_progress_secs=60.0,  # Of a worker that is alive and hangs.
          gather_secs=300.0,  # Then a run begins with those who are there.
          num_watchers=8,  # That hear from a node all the time; in doubt all.
          mesh_nodes=64,  # Of more nodes, each is connected to some others.
      ),
      cost=dict(
          # A node is charged as one of these; None: no dollars are shown.
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
          figure_format="png",  # Or pdf or svg, or several: "png,pdf".
          tensorboard=False,  # Needs the extra `tensorboard`.
          # Of the user's own, "file.py:function"; None: no other log.
          logger=config_dict.placeholder(str),
      ),
  )
