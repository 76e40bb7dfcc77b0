"""The real loop of `train.worker`, in a thread that is given the baton.

Loop, cohort, client, state and plans are those that train; see `fake_engine`
for what stands for the rest.
"""

import collections
import dataclasses
import threading
import types

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.testing.simulation import fake_engine
from bamboo_jax.testing.simulation import thread as thread_lib
from bamboo_jax.testing.simulation import worker as worker_lib
from bamboo_jax.train import environment
from bamboo_jax.train import run_state
from bamboo_jax.train import state_transfer
from bamboo_jax.train import step_plans
from bamboo_jax.train import worker as train_worker
from bamboo_jax.train.members import cluster_cohort
from bamboo_jax.train.members import transfers as transfers_lib

_LINK_SECS = 0.001


class Client(client_lib.Client):
  """The real client, whose waits pass the baton."""

  def __init__(self, worker):
    self.number = worker.number
    self._worker = worker
    self._state = worker.client
    self._changed = threading.Condition()
    self._arrived = collections.defaultdict(float)
    self._silent = {}

  def _wait(self, wait):
    held = None
    while True:
      try:
        held = self._worker.thread.wait(*wait.send(held))
      except StopIteration as end:
        return end.value

  def _wait_on_purpose(self, wait):
    return self._wait(self._state.on_purpose(wait))

  def _write(self, data):
    self._worker.say_data(data)


class Worker(worker_lib.Worker):
  """A simulated process in which `train.worker.Worker` runs."""

  FAILURES = (OSError, RuntimeError, ValueError)

  def _make_work(self):
    self.transport = fake_engine.Transport(self)
    self.exits = cluster_cohort.Exits(self.transport, None)
    self.setup = fake_engine.make_setup(self.shared.layout, self.shared.reroute)
    first = fake_engine.states_after(0, self.setup.num_stages)
    self.shared.saved_stages[0] = dict(enumerate(first))
    self._cut = set()
    self.loop = None
    self.thread = thread_lib.Thread(self._train)
    return self.thread

  def end(self):
    super().end()
    self.thread.kill()

  @property
  def steps(self):
    """Steps that it has committed; -1 before it has any state."""
    return self.loop.state.steps if self.loop else -1

  @property
  def epoch(self):
    """Which life of the run it trains in; how often that went back."""
    rollbacks = self.loop.state.rollbacks if self.loop else 0
    return self.client.adopted.epoch * 1000 + rollbacks

  @property
  def is_interrupted(self):
    return self.client.is_interrupted

  def wait(self, condition):
    self.thread.wait(condition, None)

  def sleep(self, secs):
    self.thread.wait(lambda: False, secs)

  def wake_soon(self, node):
    """Lets a worker look whether what it waits for has come."""
    if (other := self.shared.workers.get(node)) is not None:
      self._clock.at(_LINK_SECS, other._look)

  def run(self, work):
    """Returns what a generator of waits returns, in the thread."""
    try:
      wanted = next(work)
      while True:
        is_pause = isinstance(wanted, float)
        wait = (lambda: False, wanted) if is_pause else wanted
        wanted = work.send(self.thread.wait(*wait))
    except StopIteration as end:
      return end.value

  def is_cut(self, node):
    """Whether a transfer with a node has failed."""
    members = {m.number: m for m in self.client.adopted.members}
    is_gone = node in members and self.shared.is_gone(members[node].host)
    return is_gone or node in self._cut

  def note_commit(self, state):
    """Says that it has committed a step, with this state."""
    view = self.client.adopted.number
    self.shared.on_commit(self, view, self.epoch, self.steps, state)

  def _on_lost(self, view):
    if not view.members:  # It is taken in, and no other has its number.
      self.shared.workers[self.number] = self
    self._cut |= self.client.adopted.numbers - view.numbers
    return self.exits.lose(view)

  def _begun(self):
    return self.exits.begun()

  def _train(self):
    client = Client(self)
    self.claim = fence_lib.Claim(self.stamp)
    self.sleep(worker_lib.INIT_SECS)
    cohort = cluster_cohort.ClusterCohort(client, self.exits)
    self.engine = fake_engine.Engine(self)
    self.loop = self._make_loop(client, cohort, self.engine)
    self.loop.run()

  def _check_fence(self, epoch):
    claim = dataclasses.replace(self.claim, epoch=epoch)
    fence_lib.check(self.fence, claim)

  def _make_loop(self, client, cohort, engine):
    """Returns the real worker; what it makes itself is of arrays and files."""
    rules, rows = self.setup.rules, self.setup.rows
    files = fake_engine.Files(self, engine, cohort)
    transfer = state_transfer.StateTransfer(engine, cohort)
    state = run_state.RunState(
        engine, cohort, transfer=transfer, rules=rules, writer=files
    )
    state._restore = lambda steps, layout: {
        (node, stage): self.shared.saved_stages[steps][stage]
        for roles in layout.roles
        for stage, node in [*enumerate(roles.owners), *roles.shadows.items()]
        if node == self.number
    }
    transfers = transfers_lib.PeerTransfers(
        client, self.transport, None, preconnects=False
    )
    transfers.attach(engine, files)
    loop = object.__new__(train_worker.Worker)
    vars(loop).update(
        engine=engine,
        state=state,
        _config=types.SimpleNamespace(
            num_steps=self.shared.num_steps,
            redundancy=types.SimpleNamespace(check_every_steps=0),
        ),
        _job=types.SimpleNamespace(
            rules=rules,
            rows=rows,
            first_layout=self.setup.first_layout,
        ),
        _given=environment.Environment(
            cohort=cohort,
            workdir=None,
            transfers=transfers,
            check_fence=self._check_fence,
            started_secs=0.0,
        ),
        _cohort=cohort,
        _step=fake_engine.Step(self, engine, cohort),
        _transfer=transfer,
        _writer=files,
        _outputs=files,
        _log=files,
        _check=files,
        _compiler=files,
        _evaluates=False,
        _batches=types.SimpleNamespace(microbatch=print),
        _begun=-1,
        _plans=step_plans.StepPlans(rows),
    )
    recover = loop._recover

    def recover_from(error):
      if not isinstance(error, self.FAILURES):
        raise error  # No death explains it.
      recover(error)

    loop._recover = recover_from
    return loop
