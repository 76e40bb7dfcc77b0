"""Types that several packages share."""

from typing import Any, NamedTuple

from bamboo_jax.base import ids

PyTree = Any  # Nested containers of arrays, as JAX takes them.

# Limit on the nodes of a run, the dead included.
MAX_NODES = 8191


class Place(NamedTuple):
  """A stage of a pipeline, written `pipeline/stage`."""

  pipeline: int
  stage: ids.StageId

  def __str__(self) -> str:
    return f"{self.pipeline}/{self.stage}"

  @classmethod
  def parse(cls, text: str) -> "Place":
    """Parses "pipeline/stage"; raises `ValueError` for any other text."""
    pipeline, slash, stage = text.partition("/")
    if not (slash and pipeline.isdecimal() and stage.isdecimal()):
      raise ValueError(f"A place is written pipeline/stage, such as 0/2, got {text!r}.")
    return cls(int(pipeline), ids.StageId(int(stage)))
