"""GPT-2 small on 8 nodes: 2 pipelines of 4 stages.

Every field is here, with its unit; other configs start from this one. Those
that may be None are references of `ml_collections`, such as placeholders. What
"file.py:function" may be, docs/guides/own_parts.md tells.
"""

from typing import Any

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
  """Returns the default configuration."""
  return config_dict.create(
      seed=0,  # Of parameters, order of the data and dropout.
      num_steps=1_000,  # Updates of the whole run.
      # Folder of weights, see docs/guides/finetune.md; None: from the seed.
      init_from=config_dict.placeholder(str),
      plugins=(),  # Modules that register policies; see docs/research/paced.md.
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
          # Of `models.zoo`; "init_from": that of the folder; or
          # "file.py:function".
          name="gpt2",
          options=dict(  # Arguments of that model; see its docstring.
              variant="small",  # Its size: `bamboo models` lists them.
              vocab_size=256,  # Number of tokens; by default bytes.
              sequence_length=1024,  # Tokens of a sample.
          ),
          prng="threefry2x32",  # Generator of dropout; or "rbg".
      ),
      data=dict(
          # A source or paths, see docs/guides/own_data.md; or
          # "file.py:function".
          name="stdlib_text",
          options=dict(),  # Arguments of that source; see its docstring.
          prefetch_steps=1,  # Steps whose data is prepared ahead.
      ),
  )


def _pipelines() -> dict[str, Any]:
  """Returns the sections on how the work is spread."""
  return dict(
      pipeline=dict(
          # "rows": each node runs its own instructions; or "spmd": the passes
          # of a pipeline are one program, see docs/research/executors.md.
          executor="rows",
          # "depth": all pipelines have num_stages; or "templates": depths that
          # use every node; or "grid": the fastest number and depth.
          layout="depth",
          ticks="paired",  # Of "spmd", two passes; or "single", one in a tick.
          # Of "spmd": ticks lost by a death, at most. None: num_stages.
          segment_ticks=config_dict.placeholder(int),
          head="backward",  # Pass of head and loss in "spmd"; or "forward".
          num_pipelines=2,  # Copies of the model, over which the batch is cut.
          num_stages=4,  # Nodes of a pipeline; 1: every node has the model.
          num_microbatches=8,  # Per pipeline and step.
          # Samples. BERT's loss depends on it, see docs/guides/models.md.
          microbatch_size=1,
          # Parts of the batch that are summed apart. None: num_pipelines.
          num_shares=config_dict.placeholder(int),
          schedule="1f1b",  # Order of the passes; or "gpipe".
          # Kept for backward passes: "full" all, "dots" products of matrices,
          # "inputs" nothing but inputs; or by layer, as in "mlp=inputs".
          remat="full",
          unit="block",  # What shares a program; or "layer", "stage".
      ),
      node=dict(  # On GPUs; see docs/guides/gpu.md.
          deterministic=True,  # Programs repeat their bits; costs time.
          mesh=dict(data=1, tensor=1),  # Devices of a node by axis.
      ),
  )


def _protection() -> dict[str, Any]:
  """Returns the sections on how deaths are prepared for, and what follows."""
  return dict(
      redundancy=dict(
          # "none": no replicas; "lazy": replicas; "bubble", "budget", "eager":
          # and redundant forward passes, see docs/concepts/redundancy.md.
          mode="none",
          margin=0.25,  # By which waits must be longer than what fills them.
          # Of "eager" in clusters: by what part of itself a pass may be late.
          overrun=1.6,
          budget=0.05,  # Of "budget": by how much a step may be longer.
          refresh="gradient",  # What replicas get each step; or "state".
          slots="device",  # Where optimizer slots of replicas are; or "host".
          # Limit of what a node keeps until the commit; None: no limit.
          host_memory_gib=config_dict.placeholder(float),
          spares=0,  # Nodes that take the places of lost ones.
          # When replicas that died are made again; or "at_repair", by a spare.
          rereplicate="at_commit",
          check_every_steps=10,  # Compare copies; 0: only after repairs.
      ),
      recovery=dict(  # See docs/concepts/ladder.md.
          # A policy that sets the other options here, or "file.py:function";
          # None: they stay.
          policy=config_dict.placeholder(str),
          reroute=True,  # All with a copy of a lost stage compute its shares.
          drop=False,  # Leave out the samples of a lost pipeline.
          is_preemptible=True,  # False: faults and traces take no node.
          reconfigure=True,  # Make new pipelines from live copies.
          checkpoint=True,  # Go back to the last checkpoint if a layer is lost.
          fold=True,  # With few nodes, each owns several stages.
          hand_over=True,  # Announced preemptions move stages between steps.
          # Simultaneous deaths that layout "templates" is made for.
          num_failures=1,
          # How its pipelines follow the old ones: fewest moves; or by "rules".
          method="replanning",
          horizon_secs=600.0,  # New pipelines must pay within this time.
          refill=True,  # Consider new pipelines if spares can take all places.
          # Or if twice the nodes with two stages, by all nodes, is above this.
          max_doubled=0.05,
          grow=True,  # Or if there are nodes for one more pipeline.
          preconnect=True,  # Nodes connect before they need each other.
          # Of a node that others wait for because it is slow: "report" it;
          # "deal": it hands over to a spare, or shares to nodes with copies;
          # "remove": it also hands its stages over and leaves.
          slow="report",
      ),
  )


def _training() -> dict[str, Any]:
  """Returns the sections on planning, applying and keeping steps."""
  return dict(
      plan=dict(
          # File of `bamboo profile`; None: costs are estimated.
          profile=config_dict.placeholder(str),
          # GPU, as "h100", or instance, as "p5.48xlarge": costs and memory are
          # those of this machine. None: of the one that plans.
          machine=config_dict.placeholder(str),
          balance="compute",  # What stages have equal parts of; or "memory".
          # Per device; None: no limit. Not if `machine` is set.
          memory_limit_gib=config_dict.placeholder(float),
      ),
      optimizer=dict(
          name="adamw",  # A function of optax; or "file.py:function".
          options=dict(weight_decay=0.1),  # Its other arguments.
          decay="all",  # Or "matrices": norms and biases do not decay.
          learning_rate=3e-4,  # The peak, if there is a schedule.
          # Of optax; or "constant", or "file.py:function".
          schedule="warmup_cosine_decay_schedule",
          schedule_options=dict(  # Arguments of that schedule, see optax.
              init_value=0.0,  # Rate at step 0.
              warmup_steps=100,  # Until the peak.
              decay_steps=config_dict.placeholder(int),  # None: num_steps.
          ),
          # Global norm of the gradient; None: no clipping.
          clip_norm=config_dict.FieldReference(1.0),
          on_nonfinite="skip",  # Steps with NaN or inf; or "stop", "apply".
      ),
      evaluate=dict(
          every_steps=100,  # 0: never.
          num_microbatches=16,  # Of held-out samples.
      ),
      checkpoint=dict(
          every_steps=100,  # 0: only at the end.
          keep=2,  # The newest; older ones are removed.
      ),
  )


def _surroundings() -> dict[str, Any]:
  """Returns the sections on the cluster, prices and logs."""
  return dict(
      cluster=dict(  # Of real nodes; see docs/guides/cluster.md.
          heartbeat_secs=0.1,  # Between two signs of life.
          stopped_secs=1.0,  # A worker stopped for longer is killed.
          least_silence_secs=3.0,  # A shorter silence of an agent is no death.
          most_silence_secs=10.0,  # A longer one is, also of a worker.
          silence_factor=4.0,  # In between: times the longest recent gap.
          start_silence_secs=60.0,  # Most silence of a worker that starts.
          no_progress_secs=60.0,  # A worker that hangs for longer is killed.
          gather_secs=300.0,  # Then the run starts, though nodes are missing.
          num_watchers=8,  # Agents that hear a node; all, in doubt.
      ),
      cost=dict(
          # Kind of machine that a node is charged as; None: no dollars.
          instance=config_dict.placeholder(str),
          market="spot",  # Or "on_demand".
          prices=config_dict.placeholder(str),  # File; None: the package's.
          # Of the price; or of one instance, "p3.2xlarge:us-east-1". None: the
          # only region.
          region=config_dict.placeholder(str),
          # Of the price; or of one instance, "p3.2xlarge:2021". None: newest.
          date=config_dict.placeholder(str),
      ),
      metrics=dict(
          trace_steps=4,  # Last steps to keep in trace.json.
          # First and last step to trace for XProf: "3:6"; None: none.
          profile_steps=config_dict.placeholder(str),
          plots=True,  # Draw figures at the end.
          figure_format="png",  # Or pdf or svg, or several: "png,pdf".
          # Of csv, tensorboard and wandb, or of the user's own,
          # "file.py:function"; several with commas. None: no other log.
          logger=config_dict.placeholder(str),
      ),
  )
