"""Times a sum over processes that hold a share each, on this machine.

python -m bamboo_jax.benchmarks.sum_times [--mib=16] [--owners=4] [--rounds=20]

The transport (`wire.ordered_sum`) and JAX's multi-process runtime with Gloo
(an all-reduce) take turns. Prints the median of each in ms, of the slowest
process, and their ratio.
"""

import argparse
from collections.abc import Callable
import functools
import multiprocessing
from multiprocessing import connection
import statistics
import time

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.net import addresses as addresses_lib
from bamboo_jax.runtime.wire import endpoints, ordered_sum, transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

_KINDS = ("transport", "gloo")
_WARMUP = 3


def _serve(
    pipe: connection.Connection, kind: str, rank: int, count: int, mib: int, port: int
) -> None:
  """Sums once for each message, until one is false."""
  like = [jax.ShapeDtypeStruct((mib << 18,), np.float32)]
  value = [np.full(like[0].shape, rank, np.float32)]
  run: Callable[[], object]
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
    transport = transport_lib.Transport(rank, run="sums", endpoint=endpoints.listen_unix())
    pipe.send(transport.address)
    transport.set_addresses(dict(enumerate(pipe.recv())))
    channel, held = channel_lib.Channel("sum", tuple(base.nodes(count))), {rank: value}
    add_up = functools.partial(ordered_sum.ordered_sum, num_shares=count, like=like)
    run = lambda: add_up(transport, channel, held)
  pipe.send("ready")
  while pipe.recv():
    start = time.perf_counter()
    run()
    pipe.send(1e3 * (time.perf_counter() - start))


def measure(*, mib: int, owners: int, rounds: int) -> dict[str, float]:
  """Returns the median time of a sum in ms, by kind."""
  spawn, port = multiprocessing.get_context("spawn"), addresses_lib.free_port()
  pipes: dict[str, list[connection.Connection]] = {kind: [] for kind in _KINDS}
  for kind in _KINDS:
    for rank in range(owners):
      pipe, end = spawn.Pipe()
      given = (end, kind, rank, owners, mib, port)
      spawn.Process(target=_serve, args=given, daemon=True).start()
      pipes[kind].append(pipe)
  every = [pipe for kind in _KINDS for pipe in pipes[kind]]
  addresses = [pipe.recv() for pipe in pipes["transport"]]
  for pipe in pipes["transport"]:
    pipe.send(addresses)
  for pipe in every:
    assert pipe.recv() == "ready"
  times_ms: dict[str, list[float]] = {kind: [] for kind in _KINDS}
  for _ in range(_WARMUP + rounds):
    for kind in _KINDS:
      for pipe in pipes[kind]:
        pipe.send(True)
      times_ms[kind].append(max([pipe.recv() for pipe in pipes[kind]]))
  for pipe in every:
    pipe.send(False)
  return {kind: statistics.median(times_ms[kind][_WARMUP:]) for kind in _KINDS}


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--mib", type=int, default=16)
  parser.add_argument("--owners", type=int, default=4)
  parser.add_argument("--rounds", type=int, default=20)
  found = measure(**vars(parser.parse_args()))
  ours, gloo = (found[kind] for kind in _KINDS)
  print(f"transport={ours:.1f} ms gloo={gloo:.1f} ms ratio={ours / gloo:.2f}")


if __name__ == "__main__":
  main()
