"""Flags of who a process is in its run, and of where the store of the run is."""

from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import secrets
from typing import Any, NamedTuple

from bamboo_jax.cli import flagset
from bamboo_jax.cluster.store import (
    endpoint as endpoint_lib,
    etcd as etcd_lib,
    registry as registry_lib,
)
from bamboo_jax.net import identity as identity_lib


@dataclasses.dataclass(frozen=True)
class IdentityFlags:
  """The identity of a process towards the others of its run."""

  run: str = flagset.flag("run", "Name of the run in etcd.")
  secret: str | None = flagset.flag(None, "File of the shared secret; needed beyond loopback.")
  certificates: str | None = flagset.flag(
      None,
      "Folder of authority.pem, certificate.pem and key.pem, in place of those that are made "
      "from the secret.",
  )

  def make(self, role: str, name: str, *, host: str) -> identity_lib.Identity:
    """Returns the identity of this process, which listens on `host`."""
    secret = identity_lib.read_secret(self.secret)
    identity_lib.check_host(host, secret=secret)  # It signs entries of the store.
    who: dict[str, Any] = dict(run=self.run, role=role, name=name)
    if self.certificates is None:
      return identity_lib.issue(secret, **who)
    return identity_lib.load(pathlib.Path(self.certificates), secret=secret, **who)

  def found_in(self, etcd: str | None, workdir: str) -> tuple[str, "IdentityFlags"]:
    """Returns the endpoints of etcd, and the identity with what is not given.

    Without `etcd` the files of `bamboo store` or `bamboo cluster` in the workdir
    have both.
    """
    if etcd is not None:
      return etcd, self
    found = endpoint_lib.read(pathlib.Path(workdir))
    return found.etcd, dataclasses.replace(
        self,
        run=self.run if flagset.is_given("run") else found.run,
        secret=self.secret or str(endpoint_lib.secret_file(pathlib.Path(workdir))),
    )


def connect(endpoints: str, identity: identity_lib.Identity) -> etcd_lib.Etcd:
  """Returns a client of etcd that signs what it writes."""
  return etcd_lib.Etcd(endpoints, tls=identity.store, key=identity.entry_key)


class Observed(NamedTuple):
  """A run: its store, its name, its workdir or None, and its secret."""

  registry: registry_lib.Registry
  run: str
  workdir: pathlib.Path | None
  secret: str


@dataclasses.dataclass(frozen=True)
class ObserverFlags:
  """The cluster to look at."""

  workdir: str | None = flagset.flag(None, "Of a running `bamboo cluster` or `bamboo store`.")
  etcd: str | None = flagset.flag(
      None, "host:port, or several with commas between; https:// in front for TLS."
  )
  identity: IdentityFlags = flagset.part(IdentityFlags)

  def connect(self) -> Observed:
    """Returns the run that the flags name; `ValueError` if they name none."""
    if self.workdir is None and self.etcd is None:
      raise ValueError(
          "Give the --workdir of a bamboo cluster or bamboo store that runs, or the store of a "
          "run with --etcd (and --secret)."
      )
    etcd, found = self.identity.found_in(self.etcd, self.workdir or "")
    workdir = None if self.workdir is None else pathlib.Path(self.workdir)
    if workdir is not None and found.secret is None:
      found = dataclasses.replace(found, secret=str(endpoint_lib.secret_file(workdir)))
    identity = found.make("operator", "", host="127.0.0.1")
    secret = pathlib.Path(found.secret).read_text() if found.secret else secrets.token_hex()
    registry = registry_lib.Registry(connect(etcd, identity), found.run)
    return Observed(registry, found.run, workdir, secret)

  @contextlib.contextmanager
  def explaining(self) -> Iterator[None]:
    """Turns an error of the store into a `ValueError` that the run is over."""
    try:
      yield
    except OSError as error:
      if self.etcd is not None or isinstance(error, BrokenPipeError):
        raise
      raise ValueError(f"The cluster in {self.workdir} is no longer running: {error}") from error
