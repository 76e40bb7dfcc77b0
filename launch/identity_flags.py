"""Flags of the identity of a process towards the others of its run."""

import pathlib
from typing import Any, NamedTuple

from absl import flags

from bamboo_jax.cluster.store import endpoint as endpoint_lib, etcd as etcd_lib
from bamboo_jax.net import identity as identity_lib

NAMES = ("run", "secret", "certificates")
RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")
SECRET = flags.DEFINE_string("secret", None, "File of the shared secret; needed beyond loopback.")
CERTIFICATES = flags.DEFINE_string(
    "certificates",
    None,
    "Folder of authority.pem, certificate.pem and key.pem, in place of those "
    "that are made from the secret.",
)


def make(
    role: str, name: str, *, host: str, run: str | None = None, secret_file: str | None = None
) -> identity_lib.Identity:
  """Returns the identity of this process, which listens on `host`.

  `run` and `secret_file` are by default those of the flags.
  """
  secret = identity_lib.read_secret(secret_file or SECRET.value)
  identity_lib.check_host(host, secret=secret)  # It signs entries of the store.
  who: dict[str, Any] = dict(run=run or RUN.value, role=role, name=name)
  if CERTIFICATES.value is None:
    return identity_lib.issue(secret, **who)
  folder = pathlib.Path(CERTIFICATES.value)
  return identity_lib.load(folder, secret=secret, **who)


def connect(endpoints: str, identity: identity_lib.Identity) -> etcd_lib.Etcd:
  """Returns a client of etcd that signs what it writes."""
  return etcd_lib.Etcd(endpoints, tls=identity.store, key=identity.entry_key)


class RunStore(NamedTuple):
  """Endpoints of etcd, the name of a run there, and the file of its secret."""

  etcd: str
  run: str
  secret_file: str | None


def find_run(etcd: str | None, workdir: str) -> RunStore:
  """Returns the store of the run that the flags name.

  Without `etcd`, values without a flag are read from the files of `bamboo
  store` or `bamboo cluster` in the workdir.
  """
  if etcd is not None:
    return RunStore(etcd, RUN.value, SECRET.value)
  folder = pathlib.Path(workdir)
  found = endpoint_lib.read(folder)
  run = RUN.value if RUN.present else found.run
  file = SECRET.value or str(endpoint_lib.secret_file(folder))
  return RunStore(found.etcd, run, file)
