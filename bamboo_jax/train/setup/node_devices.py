"""The devices of nodes, and the links between them, as a config has them."""

import ml_collections

from bamboo_jax import base
from bamboo_jax.runtime.wire import link as link_lib


def check(config: ml_collections.ConfigDict) -> None:
  """Raises `ValueError` for what can never be right."""
  executor = config.pipeline.executor
  mesh, size = config.node.mesh, config.pipeline.microbatch_size
  if size % mesh.data:
    raise ValueError(
        f"config.node.mesh.data={mesh.data} must divide "
        f"config.pipeline.microbatch_size={size}."
    )
  if mesh.data * mesh.tensor > 1 and executor == "spmd":
    raise ValueError("config.node.mesh needs executor='rows'.")
  link = config.pipeline.link
  if link not in link_lib.KINDS:
    raise ValueError(base.suggest(link, link_lib.KINDS, what="link"))
  if link == "host" and executor == "spmd":
    raise ValueError(
        "config.pipeline.link='host' needs executor='rows': one program for "
        "all nodes runs on the devices that compute."
    )
