r"""Shows the progress of a cluster.

bamboo status --workdir=runs/cluster
bamboo status --etcd=127.0.0.1:2379 --secret=FILE

Lists nodes, layout, failures that would be survived now, and times of the last
recoveries. Reads only the store, so it disturbs no worker. With the `--workdir`
of a running `bamboo cluster` no other flag is needed; for agents that were
started one by one, name the store.
"""

import pathlib
import time

from absl import flags

from bamboo_jax.cluster.store import endpoint as endpoint_lib
from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.launch import cli
from bamboo_jax.launch import identity_flags as given
from bamboo_jax.report import status

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Of a `bamboo cluster` that runs."
)
_ETCD = flags.DEFINE_string(
    "etcd",
    None,
    "host:port, or several with commas between; https:// in front for TLS.",
)
flags.adopt_module_key_flags(given)


def main() -> None:
  """Prints the status of a run, read from its store."""
  if _WORKDIR.value is None and _ETCD.value is None:
    raise ValueError(
        "Give the --workdir of a bamboo cluster that runs, or the store of a "
        "run with --etcd (and --secret)."
    )
  etcd, run, secret = _ETCD.value, given.RUN.value, given.SECRET.value
  if _WORKDIR.value is not None:
    workdir = pathlib.Path(_WORKDIR.value)
    if etcd is None:
      endpoint = endpoint_lib.read(workdir)
      etcd = endpoint.etcd
      run = run if given.RUN.present else endpoint.run
    secret = secret or str(endpoint_lib.secret_file(workdir))
  identity = given.make(
      "operator", "", host="127.0.0.1", run=run, secret_file=secret
  )
  store = given.connect(etcd, identity)
  try:
    found = status.read(registry_lib.Registry(store, run), run)
  except OSError as error:
    if _ETCD.value is not None:
      raise
    raise ValueError(
        f"The cluster in {_WORKDIR.value} is no longer running: {error}"
    ) from error
  print(status.render(found, now_secs=time.time()))


if __name__ == "__main__":
  cli.run(main)
