"""The real loop of `train.worker`, in a thread that is given the baton.

Loop, cohort, client, state and plans are those that train; see `fake_engine`,
`fake_transport` and `fake_files` for what stands for the rest.
"""

import collections
from collections.abc import Callable, Mapping
import threading
import types
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import client as client_lib, client_state, messages, views
from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.testing.simulation import (
    fake_engine,
    fake_files,
    fake_setup,
    fake_transport,
    worker as worker_lib,
)
from bamboo_jax.train import (
    environment,
    failures as failures_lib,
    run_state,
    state_transfer,
    worker as train_worker,
)
from bamboo_jax.train.members import cluster_cohort

_LINK_SECS = 0.001
# A condition, and the seconds after which the wait is over in any case.
Wanted = tuple[Callable[[], bool], float | None]


class Baton:
  """Code that blocks, in a thread; `send` runs it up to its next wait."""

  def __init__(self, work: Callable[[], None]) -> None:
    self._work = work
    self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
    self._is_killed = self._is_done = False
    self._error: BaseException | None = None
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def send(self, held: bool | None) -> Wanted:
    """Runs the code up to its next wait; returns the condition and seconds.

    `held` is the result of the last wait. Raises the error that ends the code,
    or `StopIteration` at its end.
    """
    self._held = held
    self._turn.release()
    self._back.acquire()
    if self._is_done:
      raise self._error or StopIteration
    return self._wanted

  def wait(self, condition: Callable[[], bool], secs: float | None) -> bool | None:
    """Waits, in the thread; returns whether the condition holds."""
    self._wanted = condition, secs
    self._back.release()
    self._take_turn()
    return self._held

  def kill(self) -> None:
    """Ends the thread in its wait; returns once it has ended."""
    if not self._is_done:
      self._is_killed = True
      self._turn.release()
      self._thread.join()

  def _take_turn(self) -> None:
    self._turn.acquire()
    if self._is_killed:
      raise _KilledError

  def _run(self) -> None:
    try:
      self._take_turn()
      self._work()
    except BaseException as error:
      self._error = error
    self._is_done = True
    self._back.release()


class _KilledError(BaseException):
  """The process has been killed."""


class SimulatedClient(client_lib.Client):
  """The real client, whose waits pass the baton."""

  def __init__(self, worker: "TrainerWorker") -> None:
    self.number = worker.number
    self._worker = worker
    self._state = worker.client
    self._changed = threading.Condition()
    self._arrived = collections.defaultdict(float)
    self._silent = {}

  def _wait(self, wait: client_state.Wait) -> Any:
    held: bool | None = None
    while True:
      try:
        held = self._worker.thread.wait(*wait.send(held))
      except StopIteration as end:
        return end.value

  def _wait_on_purpose(self, wait: client_state.Wait) -> Any:
    return self._wait(self._state.on_purpose(wait))

  def send(self, message: Any) -> None:
    """Sends a message to the agent of its machine."""
    self._worker.say_data(messages.encode(message))


class TrainerWorker(worker_lib.ScriptedWorker):
  """A simulated process in which `train.worker.Worker` runs."""

  FAILURES = (OSError, RuntimeError, ValueError)

  def _make_work(self) -> worker_lib.WorkerScript:
    self.transport = fake_transport.FakeTransport(self)
    links: Any = self.transport
    self.exits = cluster_cohort.Exits(links, None)
    self.job = fake_setup.make_job(self.shared.layout, self.shared.reroute)
    self.num_stages = self.job.rules.segments.num_stages  # Never split.
    first = fake_engine.states_after(0, self.num_stages)
    self.shared.saved_stages[0] = dict(enumerate(first))
    self._cut: set[int] = set()  # Nodes of a former view that are lost.
    self.loop: train_worker.Worker | None = None
    self.thread = Baton(self._train)
    return self.thread

  def end(self) -> None:
    """See `worker.ScriptedWorker`; the thread ends, too."""
    super().end()
    self.thread.kill()

  @property
  def steps(self) -> int:
    """Steps that it has committed; -1 before it has any state."""
    return self.loop.state.steps if self.loop else -1

  @property
  def epoch(self) -> int:
    """Which life of the run it trains in; how often that went back."""
    rollbacks = self.loop.state.rollbacks if self.loop else 0
    return self.client.adopted.epoch * 1000 + rollbacks

  def wait(self, condition: Callable[[], bool]) -> None:
    """Waits, in the thread, for a condition."""
    self.thread.wait(condition, None)

  def sleep(self, secs: float) -> None:
    """Waits, in the thread, for time to pass."""
    self.thread.wait(lambda: False, secs)

  def wake_soon(self, node: base.NodeId) -> None:
    """Lets a worker look whether what it waits for has come."""
    if (other := self.shared.workers.get(node)) is not None:
      self._clock.at(_LINK_SECS, other._look)

  def is_cut(self, node: base.NodeId) -> bool:
    """Whether a transfer with a node has failed."""
    members = {m.number: m for m in self.client.adopted.members}
    is_gone = node in members and self.shared.is_gone(members[node].host)
    return is_gone or node in self._cut

  def note_commit(self, wrong: str) -> None:
    """Says that it has committed a step; `wrong` is "" for the right state."""
    view = self.client.adopted.number
    self.shared.on_commit(self, view, self.epoch, self.steps, wrong)

  def _on_lost(self, view: views.View) -> Any:
    if not view.members:  # It is taken in, and no other has its number.
      self.shared.workers[self.number] = self
    self._cut |= self.client.adopted.numbers - view.numbers
    return self.exits.lose(view)

  def _begun(self) -> channel_lib.Begun:
    return self.exits.begun()

  def _train(self) -> None:
    client = SimulatedClient(self)
    self.claim = fence_lib.Claim(self.stamp)
    self.sleep(worker_lib.INIT_SECS)
    cohort = cluster_cohort.ClusterCohort(client, self.exits)
    self.engine = fake_engine.FakeEngine(self)
    self.loop = self._make_loop(client, cohort, self.engine)
    self.loop.run()

  def _check_epoch(self, epoch: base.ViewId) -> None:
    fence_lib.check(self.fence, self.stamp, epoch)

  def _make_state(
      self, cohort: cluster_cohort.ClusterCohort, engine: Any, files: Any
  ) -> run_state.RunState:
    """Returns the real state of a run, which restores hashes."""
    saved: Mapping[int, Mapping[int, Any]] = self.shared.saved_stages
    state = run_state.RunState(
        engine,
        cohort,
        transfer=state_transfer.StateTransfer(engine, cohort),
        rules=self.job.rules,
        writer=files,
    )
    state._restore = lambda steps, layout: {
        (node, stage): saved[steps][stage]
        for roles in layout.roles
        for held in (base.by_stage(roles.owners), roles.shadows.items())
        for stage, node in held
        if node == self.number
    }
    state.compare_copies = files.compare_copies
    return state

  def _make_loop(
      self,
      client: SimulatedClient,
      cohort: cluster_cohort.ClusterCohort,
      engine: fake_engine.FakeEngine,
  ) -> train_worker.Worker:
    """Returns the real worker; what it makes itself is of arrays and files."""
    # They stand for an engine, for links, and for all that has files.
    nodes: Any = engine
    links: Any = self.transport
    files: Any = fake_files.FakeFiles(self, engine, cohort)
    state = self._make_state(cohort, nodes, files)
    transfers = cluster_cohort.PeerTransfers(client, links, None, preconnects=False)
    transfers.attach(nodes, lambda: True)
    loop = object.__new__(train_worker.Worker)
    vars(loop).update(
        engine=engine,
        state=state,
        _config=self.job.config.changed({"num_steps": self.shared.num_steps}),
        _job=self.job,
        _given=environment.Environment(
            cohort=cohort,
            workdir=files,
            transfers=transfers,
            check_fence=self._check_epoch,
            started_secs=0.0,
        ),
        _cohort=cohort,
        _step=fake_engine.Step(self, engine, cohort),
        _transfer=state.transfer,
        _writer=files,
        _outputs=files,
        _log=files,
        _compiler=files,
        _evaluates=False,
        _data=types.SimpleNamespace(microbatch=print, failures=failures_lib.Failures()),
        _failed=failures_lib.Failure(),
        _begun=-1,
        _saves_at_stop=False,
        _plans=layout_lib.StepPlans(self.job.rows),
    )
    recover = loop._recover

    def recover_from(error: Exception) -> None:
      if not isinstance(error, self.FAILURES):
        raise error  # No death explains it.
      recover(error)

    loop._recover = recover_from
    return loop
