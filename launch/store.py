r"""Runs the etcd of a cluster on several machines.

bamboo store --workdir=/shared/run --host=10.0.0.5

On a machine that is not preempted. Writes the address of etcd into the workdir,
and a secret unless there is one: `bamboo agent` and `bamboo status` with the
same --workdir need no other flag. Ends when the run is complete.
"""

import contextlib
import dataclasses
import pathlib
import secrets
import tempfile
import time

from bamboo_jax import base
from bamboo_jax.cli import flagset
from bamboo_jax.cluster.store import endpoint as endpoint_lib, private_etcd
from bamboo_jax.launch import cli, identity as identity_flags, shared
from bamboo_jax.net import addresses, identity as identity_lib

_POLL_SECS = 1.0


@dataclasses.dataclass(frozen=True)
class StoreFlags:
  """Where etcd listens, and for which run."""

  workdir: str = shared.workdir("Workdir of the run.")
  host: str = flagset.flag("127.0.0.1", "Address of this machine, at which all nodes reach it.")
  port: int = flagset.flag(2379, "Where to listen; 0: a free port.", least=0, most=65535)
  identity: identity_flags.IdentityFlags = flagset.part(identity_flags.IdentityFlags)


def main(flags: StoreFlags) -> None:
  """Runs etcd until there is a new summary; restarts it if it dies."""
  flagset.refuse(["certificates"], "by a store with certificates of the secret")
  workdir, run = pathlib.Path(flags.workdir), flags.identity.run
  file = pathlib.Path(flags.identity.secret or endpoint_lib.secret_file(workdir))
  drawn = None if file.exists() else secrets.token_hex(32)
  secret = drawn.encode() if drawn else identity_lib.read_secret(str(file))
  identity_lib.check_host(flags.host, secret=secret)
  addresses.check_free("--port", flags.host, flags.port)
  summary = workdir / "summary.json"
  with contextlib.ExitStack() as stack:
    stack.enter_context(base.lock_folder(workdir))
    former = endpoint_lib.find_former_summary(workdir, now_secs=time.time())
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    where = dict(run=run, host=flags.host, port=flags.port)
    etcd = private_etcd.PrivateEtcd(pathlib.Path(folder), secret=secret, **where)
    stack.callback(etcd.close)
    etcd.wait_ready()
    if drawn:  # Nothing is written before this.
      base.write_atomically(file, drawn, mode=0o600)
    endpoint_lib.write(workdir, endpoint_lib.RunAddress(etcd.endpoint, run))
    print(f"etcd: {etcd.endpoint}", flush=True)
    while (summary.read_bytes() if summary.exists() else None) == former:
      time.sleep(_POLL_SECS)
      etcd.tend()
    time.sleep(endpoint_lib.LEAVE_SECS)
  print("The run is complete.")


if __name__ == "__main__":
  cli.run(main)
