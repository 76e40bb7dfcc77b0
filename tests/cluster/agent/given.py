"""Options of agents under test."""

from bamboo_jax.cluster import detection
from bamboo_jax.cluster.agent import options as agent_options
from bamboo_jax.cluster.sessions import eras as eras_lib


def make_options(name, **changes):
  """Returns what an agent of the simulation is told."""
  told = dict(
      run="run",
      name=name,
      zone="a",
      workdir="workdir",
      host="h",
      num_nodes=4,
      max_nodes=None,
      place=lambda zones: {ticket: ticket for ticket in zones},
      config={"seed": 0},
      command=(),
      log="",
      limits=detection.Limits(),
      era=eras_lib.Era(0, "h:1", 64),
  )
  return agent_options.Options(**{**told, **changes})
