"""Flags of who a process is in its run, and of the run to look at."""

import dataclasses
import functools
import pathlib
from typing import Any

from bamboo_jax.cli import flagset
from bamboo_jax.cluster import mirror, records as records_lib
from bamboo_jax.net import identity as identity_lib


@dataclasses.dataclass(frozen=True)
class IdentityFlags:
  """The identity of a process towards the others of its run."""

  run: str = flagset.flag("run", "Name of the run in --certificates.")
  secret: str | None = flagset.flag(
      None, "File of the shared secret; by default `secret` in --workdir, drawn by the first node."
  )
  certificates: str | None = flagset.flag(
      None,
      "Folder of authority.pem, certificate.pem and key.pem, in place of those that are made "
      "from the secret.",
  )

  def drawn(self, workdir: pathlib.Path) -> "IdentityFlags":
    """Returns the same with a secret, which is drawn in a folder if it is not given."""
    if self.secret is not None:
      return self
    return dataclasses.replace(self, secret=identity_lib.draw_secret(workdir))

  def make(self, role: str, name: str, *, host: str) -> identity_lib.Identity:
    """Returns the identity of this process, which listens on `host`."""
    secret = identity_lib.read_secret(self.secret)
    identity_lib.check_host(host, secret=secret)  # It signs records.
    who: dict[str, Any] = dict(run=self.run, role=role, name=name)
    if self.certificates is None:
      return identity_lib.issue(secret, **who)
    return identity_lib.load(pathlib.Path(self.certificates), secret=secret, **who)


@dataclasses.dataclass(frozen=True)
class ObserverFlags:
  """The run to look at."""

  workdir: str | None = flagset.flag(
      None, "Of a `bamboo cluster`, or of agents: a folder, or its URL.", takes_bucket=True
  )
  secret: str | None = flagset.flag(None, "File of its secret; by default `secret` in --workdir.")

  @property
  def name(self) -> str:
    """The name of the run, for people."""
    return pathlib.Path(self.workdir or "").absolute().name

  @functools.cached_property
  def folder(self) -> pathlib.Path:
    """The folder with the files of the run: its own, or a copy of those in a bucket."""
    return mirror.look(self.workdir or "")

  def read_secret(self) -> bytes:
    """Returns the secret of the run; `ValueError` without a run."""
    if self.workdir is None:
      raise ValueError("Give the --workdir of a run.")
    file = pathlib.Path(self.secret or self.folder / "secret")
    if not self.secret and not file.exists():
      raise ValueError(
          f"No cluster has run in {self.workdir}: there is no {file}, which bamboo cluster and "
          "bamboo agent write."
      )
    return identity_lib.read_secret(str(file))

  def open(self) -> records_lib.Records:
    """Returns the records of the run; `ValueError` without a run."""
    secret = self.read_secret()
    assert self.workdir is not None
    return records_lib.Records(self.workdir, identity_lib.find_entry_key(secret))
