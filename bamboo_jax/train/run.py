"""Trains from a config, into a workdir; resumes what is there.

All nodes in this process or one member of a cluster: both make an environment
for the same worker.
"""

from collections.abc import Callable, Sequence
import contextlib
import ipaddress
import socket
import time

import ml_collections

from bamboo_jax import base
from bamboo_jax.base import threads
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.cluster.store import tenure
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.spmd.processes import black_holes
from bamboo_jax.runtime.spmd.processes import collectives as collectives_lib
from bamboo_jax.runtime.spmd.processes import coordination
from bamboo_jax.runtime.spmd.processes import rendezvous as rendezvous_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.wire import endpoints
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.train import environment
from bamboo_jax.train import worker as worker_lib
from bamboo_jax.train.members import cluster_cohort
from bamboo_jax.train.members import local_cohort
from bamboo_jax.train.members import transfers as transfers_lib
from bamboo_jax.train.record import meter as meter_lib
from bamboo_jax.train.record import workdir as workdir_lib
from bamboo_jax.train.setup import checks
from bamboo_jax.train.setup import job as job_lib
from bamboo_jax.train.setup import policy
from bamboo_jax.train.setup import sizes


def train_and_evaluate(
    config: ml_collections.ConfigDict,
    *,
    workdir: str,
    stop_at: int | None = None,
    faults: str | None = None,
    hearing: Callable[
        [Callable[[], bool]], contextlib.AbstractContextManager[None]
    ] = lambda ask: contextlib.nullcontext(),
    callbacks: Sequence[environment.Callback] = (),
    settles: bool = False,
) -> bool:
  """Trains until `config.num_steps` steps are done; returns whether they are.

  All nodes are in this process, each on a virtual device.

  Args:
    config: See `configs/default.py`.
    workdir: A run that is there already is resumed.
    stop_at: Return right after this many steps instead, waiting for nothing.
    faults: Path of a file of deaths and joins, see `faults`.
    hearing: Entered while it trains; may call its argument at any time, which
      ends the run after the step, saved, and returns whether it has begun.
    callbacks: Each is called after every committed step.
    settles: Whether what is being saved is waited for however it returns, as a
      process must that goes on and may use the workdir.

  Raises:
    ValueError: The config does not fit together, or not the run in `workdir`,
      or others work there. Subclasses in `base` tell some cases apart.
    base.CallbackError: A callback has raised its cause.
    base.FencedError: Another run has taken over `workdir`.
    OSError: A file cannot be read or written.
  """
  policy.apply(config)
  checks.check_config(config)
  where = workdir_lib.Workdir.at(workdir)
  found = fence_lib.Fence(workdir).read()
  found_secs = time.monotonic()
  meter_lib.make_meter(config)  # Checks the prices.
  due = sizes.read_faults(config, faults)
  num_nodes = sizes.num_nodes(config)
  faults_lib.check_nodes(
      due, num_nodes=num_nodes, zones=local_cohort.ZONES, source=faults or ""
  )
  num_late = sum(fault.kind == "join" for fault in due)
  apart = use_devices(config, num_nodes + num_late)
  # If all die, as many new nodes come; they take the devices in turn.
  numbers = range((num_nodes + num_late) * (1 + len(due)))
  devices = devices_lib.place_nodes(numbers, apart=apart)
  job = job_lib.make_job(config, devices=devices)
  cohort = local_cohort.LocalCohort(num_nodes, seed=config.seed)
  with (
      base.lock_folder(workdir),
      tenure.hold(workdir, found, found_secs) as check_fence,
      progress_lib.Progress(num_steps=config.num_steps) as progress,
  ):
    worker = worker_lib.Worker(
        job,
        environment.Environment(
            cohort=cohort,
            workdir=where,
            faults=due,
            director=cohort,
            progress=progress,
            prefetches=True,
            check_fence=lambda epoch: check_fence(),  # It has one life.
            stops=lambda: cohort.is_asked_to_stop,
            callbacks=callbacks,
        ),
    )
    with contextlib.ExitStack() as stack:
      if settles:
        stack.callback(worker.state.writer.close)
      stack.enter_context(hearing(cohort.ask_to_stop))
      is_done = worker.run(stop_at)
      for line in faults_lib.find_missed(
          due,
          cohort.happened,
          first=cohort.first_step,
          end=worker.state.steps,
          source=faults or "",
      ):
        progress.show_text(line)
      return is_done


def train_in_cluster(
    config: ml_collections.ConfigDict,
    agent: socket.socket,
    *,
    workdir: str,
    name: str,
    number: int,
    stamp: str,
    host: str,
    identity: identity_lib.Identity,
    started_secs: float,
    faults: str | None = None,
    director: str | None = None,
) -> None:
  """Trains on one node of a cluster, together with the processes of others.

  Args:
    agent: Connected to the agent of this node.
    workdir: The same for all nodes.
    stamp: Of the run; once the workdir is that of another, this one ends.
    host: Where to listen, and how others reach this node.
    faults: As for `train_and_evaluate`.
    director: Local socket of the process that carries them out.
    started_secs: When the agent was started, on `time.perf_counter`.

  Raises `base.UnrecoverableHereError` if a stage has no copy left.
  """
  policy.apply(config)
  is_alone = ipaddress.ip_address(host).is_loopback
  transport = transport_lib.Transport(
      number,
      run=stamp,
      endpoint=endpoints.UnixEndpoint()
      if is_alone
      else endpoints.TlsEndpoint(host, identity),
      note=lambda: client.note_progress(),
  )
  log = None
  if config.pipeline.executor == "spmd":
    rendezvous = rendezvous_lib.Rendezvous(
        number,
        transport,
        is_lost=lambda node: node not in client.newest.numbers,
    )
    log = transfer_log.TransferLog(rendezvous.meet)
  exits = cluster_cohort.Exits(transport, log)
  client = client_lib.Client(
      agent,
      number=number,
      on_lost=exits.lose,
      begun=exits.begun,
      heartbeat_secs=config.cluster.heartbeat_secs,
      silence_secs=config.cluster.least_silence_secs,
  )
  apart, collectives = use_devices(config, 1), None
  if log is None:
    devices = devices_lib.place_nodes([number], apart=apart)
  else:
    threads.call_beside(black_holes.watch, log.find_stuck, name="links")
    coordination.connect(number, host=host)
    devices = coordination.devices_by_node()
    collectives = collectives_lib.Collectives(log, devices)
  fence = fence_lib.Fence(workdir)
  # A cluster may also follow a trace, which needs no faults here.
  strikes = None
  if director:
    strikes = cluster_cohort.RemoteDirector(director, number=number, name=name)
  job = job_lib.make_job(
      config, devices=devices, collectives=collectives, exchange=transport
  )
  given = environment.Environment(
      cohort=cluster_cohort.ClusterCohort(client, exits),
      workdir=workdir_lib.Workdir.at(workdir),
      transfers=transfers_lib.PeerTransfers(
          client, transport, collectives, preconnects=config.recovery.preconnect
      ),
      check_fence=lambda epoch: fence_lib.check(
          fence, fence_lib.Claim(stamp, epoch)
      ),
      faults=sizes.read_faults(config, faults),
      director=strikes,
      stops=strikes.is_asked_to_stop if strikes else lambda: False,
      started_secs=started_secs,
  )
  worker_lib.Worker(job, given).run()


def use_devices(config: ml_collections.ConfigDict, num_nodes: int) -> bool:
  """Makes devices for nodes; returns whether transfers have others.

  Call before anything else starts JAX.
  """
  per_node = config.node.mesh.data * config.node.mesh.tensor
  apart = per_node > 1
  devices_lib.use_virtual_devices(
      num_nodes,
      per_node=per_node,
      distinct=config.pipeline.executor == "spmd" or per_node > 1,
      apart=apart,
      deterministic=config.node.deterministic,
  )
  return apart
