"""Times a sum over processes that hold a share each, on this machine.

python -m tests.sum_times [--mib=16] [--owners=4] [--rounds=20]

The transport (`wire.ordered_sum`) and JAX's multi-process runtime with Gloo
(an all-reduce) take turns. Prints the median of each in ms, of the slowest
process, and their ratio.
"""

import argparse
import multiprocessing
import statistics
import time

import jax
import numpy as np

from bamboo_jax.base import ports
from bamboo_jax.runtime.wire import endpoints, ordered_sum, transport as transport_lib

_KINDS = ("transport", "gloo")
_WARMUP = 3


def _serve(pipe, kind, rank, count, mib, port):
  """Sums once for each message."""
  like = [jax.ShapeDtypeStruct((mib << 18,), np.float32)]
  value = [np.full(like[0].shape, rank, np.float32)]
  if kind == "gloo":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    mesh = jax.sharding.Mesh(jax.devices(), "owner")
    spec = jax.sharding.PartitionSpec("owner")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    whole = jax.make_array_from_process_local_data(sharding, value[0])
    add = lambda x: jax.lax.psum(x, "owner")
    program = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec))
    run = lambda: jax.block_until_ready(program(whole))
  else:
    transport = transport_lib.Transport(rank, run="sums", endpoint=endpoints.UnixEndpoint())
    pipe.send(transport.address)
    transport.set_addresses(dict(enumerate(pipe.recv())))
    device = jax.devices()[0]
    total = ordered_sum.OrderedSum(range(count), me=rank, like=like, device=device)
    run = lambda: total(transport, "sum", {rank: value})
  pipe.send("ready")
  while pipe.recv():
    start = time.perf_counter()
    run()
    pipe.send(1e3 * (time.perf_counter() - start))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--mib", type=int, default=16)
  parser.add_argument("--owners", type=int, default=4)
  parser.add_argument("--rounds", type=int, default=20)
  args = parser.parse_args()
  spawn, port = multiprocessing.get_context("spawn"), ports.free_port()
  pipes = {kind: [] for kind in _KINDS}
  for kind in _KINDS:
    for rank in range(args.owners):
      pipe, end = spawn.Pipe()
      given = (end, kind, rank, args.owners, args.mib, port)
      spawn.Process(target=_serve, args=given, daemon=True).start()
      pipes[kind].append(pipe)
  addresses = [pipe.recv() for pipe in pipes["transport"]]
  for pipe in pipes["transport"]:
    pipe.send(addresses)
  for pipe in sum(pipes.values(), []):
    assert pipe.recv() == "ready"
  times_ms = {kind: [] for kind in _KINDS}
  for _ in range(_WARMUP + args.rounds):
    for kind in _KINDS:
      for pipe in pipes[kind]:
        pipe.send(True)
      times_ms[kind].append(max([pipe.recv() for pipe in pipes[kind]]))
  for pipe in sum(pipes.values(), []):
    pipe.send(False)
  ours, gloo = (statistics.median(times_ms[k][_WARMUP:]) for k in _KINDS)
  print(f"transport={ours:.1f} ms gloo={gloo:.1f} ms ratio={ours / gloo:.2f}")


if __name__ == "__main__":
  main()
