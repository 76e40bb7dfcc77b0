"""Numbers of a config that need neither model nor JAX."""

import ml_collections


def num_nodes(config: ml_collections.ConfigDict) -> int:
  """Returns the number of nodes to begin with, spares included."""
  pipeline = config.pipeline
  return pipeline.num_pipelines * pipeline.num_stages + config.redundancy.spares


def fault_limits(config: ml_collections.ConfigDict) -> dict[str, int]:
  """Returns how many steps, pipelines and stages a fault may name."""
  pipelines, stages = config.pipeline.num_pipelines, config.pipeline.num_stages
  if config.pipeline.layout == "templates":  # They have any shape.
    pipelines = stages = num_nodes(config)
  return {
      "num_steps": config.num_steps,
      "num_pipelines": pipelines,
      "num_stages": stages,
  }
