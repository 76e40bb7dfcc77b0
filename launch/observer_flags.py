"""Flags of commands that look at a cluster: where its store is."""

from collections.abc import Iterator
import contextlib
import pathlib
import secrets
from typing import NamedTuple

from absl import flags

from bamboo_jax.cluster.store import endpoint as endpoint_lib, registry as registry_lib
from bamboo_jax.launch import identity_flags

WORKDIR = flags.DEFINE_string("workdir", None, "Of a running `bamboo cluster` or `bamboo store`.")
ETCD = flags.DEFINE_string(
    "etcd", None, "host:port, or several with commas between; https:// in front for TLS."
)
flags.adopt_module_key_flags(identity_flags)


class Observed(NamedTuple):
  """A run: its store, its name, its workdir or None, and its secret."""

  registry: registry_lib.Registry
  run: str
  workdir: pathlib.Path | None
  secret: str


def connect() -> Observed:
  """Returns the run that the flags name; `ValueError` if they name none."""
  if WORKDIR.value is None and ETCD.value is None:
    raise ValueError(
        "Give the --workdir of a bamboo cluster or bamboo store that runs, or "
        "the store of a run with --etcd (and --secret)."
    )
  etcd, run, file = identity_flags.find_run(ETCD.value, WORKDIR.value or "")
  workdir = None
  if WORKDIR.value is not None:
    workdir = pathlib.Path(WORKDIR.value)
    file = file or str(endpoint_lib.secret_file(workdir))
  identity = identity_flags.make("operator", "", host="127.0.0.1", run=run, secret_file=file)
  store = identity_flags.connect(etcd, identity)
  secret = pathlib.Path(file).read_text() if file else secrets.token_hex()
  return Observed(registry_lib.Registry(store, run), run, workdir, secret)


@contextlib.contextmanager
def explaining() -> Iterator[None]:
  """Turns an error of the store into a `ValueError` that the run is over."""
  try:
    yield
  except OSError as error:
    if ETCD.value is not None or isinstance(error, BrokenPipeError):
      raise
    raise ValueError(f"The cluster in {WORKDIR.value} is no longer running: {error}") from error
