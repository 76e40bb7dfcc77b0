"""Trains from a config, into a workdir, and resumes the run that it contains.

Both entry points, all nodes in this process and one member of a cluster, make
an environment for the same worker.
"""

from collections.abc import Callable, Sequence
import contextlib
import functools
import os
import socket

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import logs
from bamboo_jax.cluster import copies, holding, judge, records as records_lib, waits
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.net import identity as identity_lib
from bamboo_jax.runtime import accelerator, devices as devices_lib, program_store
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib
from bamboo_jax.training import cohort as cohort_lib, control as control_lib, worker as worker_lib
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import accept, build, job as job_lib, sizes


def train_and_evaluate(
    config: config_lib.Config,
    *,
    workdir: str,
    stop_at: int | None = None,
    faults: str | None = None,
    hearing: Callable[
        [Callable[[], bool]], contextlib.AbstractContextManager[None]
    ] = lambda ask: contextlib.nullcontext(),
    callbacks: Sequence[job_lib.Callback] = (),
    settles: bool = False,
    with_control: bool = False,
) -> bool:
  """Trains all nodes in this process; returns whether `num_steps` are done.

  Each node has a virtual device.

  Args:
    config: Options of the run; or a `ConfigDict` of them.
    workdir: Folder of the run, or its URL in a bucket; it is resumed if it exists.
    stop_at: Return after this many steps instead, without a checkpoint.
    faults: Path of a file of deaths and joins, see `faults`.
    hearing: Context entered while training. It may call its argument at any
      time, which saves and ends the run after the current step, and returns
      whether training has begun.
    callbacks: Each is called after every committed step.
    settles: Whether to wait for unfinished saves even after an exception;
      needed if the process goes on and may use the workdir again.
    with_control: Whether to write `control.json`, see `control`.

  Raises:
    ValueError: The config is inconsistent or of another run than `workdir`, or
      another process uses `workdir`. `base` has subclasses for some cases.
    base.RunFailedError: The user's code or data ended the run. Its cause is a
      `base.CallbackError`, with a cause of its own, if a callback raised.
    base.FencedError: Another run has taken over `workdir`.
    OSError: A file cannot be read or written.
  """
  config = accept.accept(config)
  where = workdir_lib.Workdir.take(workdir)
  where.share_programs(program_store.use())
  due = sizes.read_faults(config, faults)
  num_nodes, source = sizes.num_nodes(config), faults or ""
  faults_lib.check_nodes(due, num_nodes=num_nodes, zones=(cohort_lib.ZONE,), source=source)
  with progress_lib.waiting("reading the data, planning the step"):
    # All nodes, those that join later included.
    num_places = num_nodes + sum(fault.kind == "join" for fault in due)
    apart = use_devices(config, num_places)
    # If all die, the same number of new nodes joins and shares the devices.
    numbers = base.nodes(num_places * (1 + len(due)))
    job = job_lib.make_job(config, devices=devices_lib.place_nodes(numbers, apart=apart))
  job_lib.check_same(config, job.task, where)
  if with_control:
    callbacks = (*callbacks, control_lib.Control(job, where.control))
  cohort = cohort_lib.LocalCohort(num_nodes, seed=config.seed)
  with (
      base.lock_folder(where.root),
      progress_lib.ProgressLine(num_steps=config.num_steps) as progress,
      contextlib.ExitStack() as stack,
  ):
    records = records_lib.open_folder(where.root, workdir)
    patience_secs = config.cluster.most_silence_secs
    holder = stack.enter_context(holding.hold(records, patience_secs=patience_secs))

    def stops() -> bool:
      if holder.is_taken:
        holder.check()  # Raises, as others have the folder.
      return cohort.is_asked_to_stop

    given = job_lib.Environment(
        cohort=cohort,
        workdir=where,
        faults=due,
        progress=progress,
        prefetches=True,
        check_fence=lambda view: holder.check(),
        stops=stops,
        callbacks=callbacks,
    )
    worker = worker_lib.Worker(job, given)
    if settles:
      stack.callback(worker.state.writer.close)
    stack.enter_context(hearing(cohort.ask_to_stop))
    is_done = worker.run(stop_at)
    missed = faults_lib.find_missed(
        due, cohort.happened, first=worker.first_step, end=worker.state.steps, source=source
    )
    for line in missed:
      progress.show_text(line)
    return is_done


def train_in_cluster(
    config: config_lib.Config,
    agent: socket.socket,
    *,
    workdir: str,
    name: str,
    number: base.NodeId,
    stamp: str,
    host: str,
    identity: identity_lib.Identity,
    started_secs: float,
    faults: str | None = None,
    faults_run: int | None = None,
) -> None:
  """Trains on one node of a cluster, together with the other nodes; blocks.

  Args:
    agent: Socket connected to the agent of this node.
    workdir: Folder of the run, shared by all nodes, or its URL in a bucket.
    stamp: Identity of the run.
    host: Address at which this node listens and other nodes reach it.
    identity: Certificates for connections to other machines.
    started_secs: Start of the agent, on `time.perf_counter`.
    faults: As for `train_and_evaluate`.
    faults_run: The run whose records say which faults have happened; None: of the node.

  Raises:
    base.RunFailedError: A stage has no copy left, or the user's code or data ended the run.
  """
  config = accept.accept(config)
  logs.note_names({number: name})
  make_ring = fork_children(config, host=host)
  silence_secs = config.cluster.least_silence_secs
  transport = transport_lib.Transport(
      number, run=stamp, endpoint=endpoints.listen(host, identity, silence_secs=silence_secs)
  )
  processes = make_ring and make_ring(number, transport)
  records = records_lib.Records(workdir, identity.entry_key)
  where = workdir_lib.Workdir.at(workdir)
  where.share_programs(program_store.use())  # Not in children, which have no threads.
  cohort = cohort_lib.ClusterCohort(
      *(number, transport, records, where.root),
      ring=lambda: processes.running if processes else (),
      faults_run=faults_run,
  )
  waits.tell_on_signal(number, cohort.begun)
  cohort.connect(agent, config.cluster)
  apart = use_devices(config, 1)
  devices = devices_lib.place_nodes([number], apart=apart)
  job = job_lib.make_job(config, devices=devices, exchange=transport)
  given = job_lib.Environment(
      cohort=cohort,
      workdir=where,
      name=name,
      processes=processes,
      check_fence=lambda view: judge.check_now(records, view),
      note_done=lambda view: judge.note_done(records, view),
      faults=sizes.read_faults(config, faults),
      stops=lambda: cohort.newest.stops,
      started_secs=started_secs,
  )
  worker_lib.Worker(job, given).run()


def fork_children(
    config: config_lib.Config, *, host: str
) -> Callable[[base.NodeId, transport_lib.Transport], build.ProcessRing] | None:
  """Prepares to run programs over several processes; None for rows.

  Call before this process has threads. Returns a function that makes the end of
  a node, which listens at `host`, from its number and transport.
  """
  if not build.is_program(config):
    return None
  accelerator.share_with_child(os.environ)
  memory = build.SharedMemory()

  def fork(num_devices: int) -> Callable[[], socket.socket]:
    run_passes = functools.partial(_run_passes, config, memory, host, num_devices)
    return copies.prepare_successors(run_passes, keeps=[memory.fd])

  fork_compiler = None
  platform = accelerator.find_platform(os.environ, accelerator.find_gpus(os.environ))
  if platform == "cpu" and program_store.use().folder is not None:
    fork_compiler = fork(config.pipeline.num_stages)
  return functools.partial(
      build.ProcessRing, fork=fork(1), memory=memory, host=host, fork_compiler=fork_compiler
  )


def _run_passes(
    config: config_lib.Config,
    memory: build.SharedMemory,
    host: str,
    num_devices: int,
    end: socket.socket,
) -> None:
  """Runs or compiles programs over several processes, for the worker at the other `end`."""
  use_devices(config, num_devices)
  build.run_child(end, memory, lambda: job_lib.take(config).whole, host=host)


def use_devices(config: config_lib.Config, num_nodes: int) -> bool:
  """Makes devices for nodes; returns whether transfers have separate devices.

  Call before anything else starts JAX.
  """
  per_node = sizes.num_devices(config)
  apart = per_node > 1
  devices_lib.use_virtual_devices(
      num_nodes,
      per_node=per_node,
      distinct=build.is_program(config) or per_node > 1,
      apart=apart,
      deterministic=config.node.deterministic,
  )
  return apart
