"""The page of a run on this machine, with buttons that cause faults."""

from bamboo_jax import base
from bamboo_jax.local_cluster import director as director_lib, machine, setup as setup_lib
from bamboo_jax.report.live import feed as feed_lib, server


def serve(
    setup: setup_lib.Setup, cluster: machine.LocalCluster, director: director_lib.Director
) -> str:
  """Starts to serve the page; returns a line with its address, or a warning."""
  feed = feed_lib.Feed(
      setup.workdir,
      cluster.records,
      name=setup.workdir.absolute().name,
      actions=director_lib.ACTIONS,
      kills=director.kills,
  )
  secret = (setup.workdir / "secret").read_text()
  assert setup.page_port is not None
  try:
    address = server.start(
        feed.read, token=server.make_token(secret), port=setup.page_port, act=director.cause
    )
  except (OSError, base.MissingExtraError) as error:
    return f"warning: No page: {error} Training continues."
  return f"page: {address}"
