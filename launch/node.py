"""Flags of an agent and of its worker."""

import dataclasses
import pathlib
from typing import Any

from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.config import Config
from bamboo_jax.launch import cli
from bamboo_jax.net import identity as identity_lib


@dataclasses.dataclass(frozen=True)
class IdentityFlags:
  """The identity of a process towards the others of its run."""

  run: str = flag("run", "Name of the run in --certificates.")
  secret: str | None = flag(
      None, "File of the shared secret; by default `secret` in --workdir, drawn by the first node."
  )
  certificates: str | None = flag(
      None,
      "Folder of authority.pem, certificate.pem and key.pem, in place of those that are made "
      "from the secret.",
  )

  def make(self, role: str, name: str, *, host: str, folder: pathlib.Path) -> identity_lib.Identity:
    """Returns the identity of this process, which listens on `host`.

    A secret that is not given is that of the folder of the run, where the first process draws it.
    """
    file = identity_lib.draw_secret(folder) if self.secret is None else self.secret
    secret = identity_lib.read_secret(file)
    identity_lib.check_host(host, secret=secret)  # It signs records.
    who: dict[str, Any] = dict(run=self.run, role=role, name=name)
    if self.certificates is None:
      return identity_lib.issue(secret, **who)
    return identity_lib.load(pathlib.Path(self.certificates), secret=secret, **who)


@dataclasses.dataclass(frozen=True)
class NodeFlags:
  """What an agent passes on to its worker."""

  # Name and workdir come first, where `ps` shows them.
  name: str = flag(None, "Of the node.", is_needed=True)
  workdir: str = cli.workdir()
  config: Config = cli.config("default", "What to train.")
  host: str = flag("127.0.0.1", "Where to listen.")
  faults: str | None = flag(None, "CSV file of faults.")
  faults_run: int | None = flag(
      None, "The run whose records say which faults have happened; by default the node's."
  )
  device_memory_fraction: float | None = cli.device_memory_fraction()
  program_cache: str | None = cli.program_cache(
      "programs in --workdir, which all machines then share; if that is in a bucket, each has its "
      "own, and they exchange programs through the bucket"
  )
  identity: IdentityFlags = part(IdentityFlags)
