"""Flags of an agent and of its worker."""

import dataclasses

from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.launch import cli, identity as identity_flags, shared


@dataclasses.dataclass(frozen=True)
class NodeFlags:
  """What an agent passes on to its worker."""

  # Name and workdir come first, where `ps` shows them.
  name: str = flagset.flag(None, "Of the node.", is_needed=True)
  workdir: str = shared.run_workdir()
  config: Config = cli.config("default", "What to train.")
  host: str = flagset.flag("127.0.0.1", "Where to listen.")
  faults: str | None = flagset.flag(None, "CSV file of faults.")
  faults_run: int | None = flagset.flag(
      None, "The run whose records say which faults have happened; by default the node's."
  )
  device_memory_fraction: float | None = shared.device_memory_fraction()
  program_cache: str | None = shared.program_cache(
      "programs in --workdir, which all machines then share; each has its own if the workdir is in "
      "a bucket"
  )
  identity: identity_flags.IdentityFlags = flagset.part(identity_flags.IdentityFlags)
