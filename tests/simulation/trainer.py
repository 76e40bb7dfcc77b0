"""The real loop of `train.worker`, on nodes that compute hashes.

A worker whose loop, cohort, state, plans and settling of transfers are those
that train; programs, links, files and blobs are made up. What a pass returns is
the hash of step, stage, microbatch and all that it has read: a value that is
paired wrongly, used twice or taken from a filler changes the state.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import hashlib
import threading
import types
from typing import Any

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import settle
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.plan import planner
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import environment
from bamboo_jax.train import run_state
from bamboo_jax.train import step as step_lib
from bamboo_jax.train import step_plans
from bamboo_jax.train import worker as train_worker
from bamboo_jax.train.members import cluster_cohort
from bamboo_jax.train.members import switch_session
from tests import layouts
from tests.simulation import worker as worker_lib

Op = instruction_lib.Op
_NUM_STAGES = _NUM_SHARES = 2
_PER_SHARE = 4
_PASS_SECS, _LINK_SECS = 0.02, 0.001
_FILLER = "filler"


def mix(*parts: Any) -> str:
  """Returns the hash of some values."""
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@functools.cache
def states_after(steps: int) -> tuple[str, ...]:
  """Returns the state of each stage after so many steps without faults."""
  if not steps:
    return tuple(mix("start", s) for s in range(_NUM_STAGES))
  states, step = states_after(steps - 1), steps - 1
  sums = collections.defaultdict(str)
  for microbatch in range(_NUM_SHARES * _PER_SHARE):
    outputs, grad = [""], ""
    for stage, state in enumerate(states):
      key = (step, stage, microbatch)
      outputs.append(mix("forward", key, state, outputs[-1]))
    for stage in reversed(range(_NUM_STAGES)):
      key = (step, stage, microbatch)
      grad = mix("backward", key, states[stage], outputs[stage], grad)
      entry = stage, microbatch // _PER_SHARE
      sums[entry] = mix(sums[entry], grad)
  total = lambda s: [sums[s, share] for share in range(_NUM_SHARES)]
  return tuple(mix(state, total(s)) for s, state in enumerate(states))


@functools.cache
def _make_rules() -> tuple[Any, rows_lib.RowPlanner]:
  rules = layouts.make_rules(_NUM_STAGES, _NUM_SHARES, mode="eager")
  plan = planner.make_plan(
      layouts.make_profile(_NUM_STAGES),
      num_stages=_NUM_STAGES,
      num_pipelines=_NUM_SHARES,
      num_microbatches=_PER_SHARE,
      microbatch_size=1,
      num_shares=_NUM_SHARES,
  )
  rows = rows_lib.RowPlanner(plan, rows_lib.Redundancy("eager"))
  return rules, rows


class Thread:
  """Sequential code as a generator: `send` runs it up to its next wait."""

  def __init__(self, work: Callable[[], None]) -> None:
    self._work = work
    self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
    self._is_killed = self._is_done = False
    self._error: BaseException | None = None
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def send(self, held: bool | None) -> Any:
    """Returns what is waited for next; raises as a generator does."""
    self._held = held
    self._turn.release()
    self._back.acquire()
    if self._is_done:
      raise self._error or StopIteration
    return self._wanted

  def wait(self, condition: Callable[[], bool], secs: float | None) -> bool:
    """Waits, in the thread; returns whether the condition holds."""
    self._wanted = condition, secs
    self._back.release()
    self._take_turn()
    return self._held

  def kill(self) -> None:
    """Ends it where it waits."""
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


class Client(client_lib.Client):
  """The real client, whose waits pass the baton."""

  def __init__(self, worker: "Worker") -> None:
    self.number = worker.number
    self._worker = worker
    self._state = worker.client
    self._changed = threading.Condition()
    self._arrived = collections.defaultdict(float)

  def _wait(self, wait: Any) -> Any:
    held = None
    while True:
      try:
        held = self._worker.thread.wait(*wait.send(held))
      except StopIteration as end:
        return end.value

  def _wait_on_purpose(self, wait: Any) -> Any:
    return self._wait(self._state.on_purpose(wait))

  def _write(self, data: bytes) -> None:
    self._worker.say_data(data)


class Cohort(cluster_cohort.ClusterCohort):
  """The real cohort, whose waits for the dead need no breaking."""

  def __init__(self, client: Client, log: transfer_log.TransferLog) -> None:
    self.number = client.number
    self.hosted = frozenset({client.number})
    self._client, self._log = client, log


class Node:
  """What a node holds: hashes, as `runtime.node` holds arrays."""

  def __init__(self) -> None:
    self.state: dict[int, str] = {}
    self.clear()

  def clear(self) -> None:
    """Forgets the step."""
    self.ledger = holdings_lib.Ledger()
    self.activations: dict[tuple[int, int], str] = {}
    self.grads: dict[tuple[int, int], str] = {}
    self.sums: dict[tuple[int, int], str] = collections.defaultdict(str)

  def run(
      self, step: int, i: instruction_lib.Instruction, find: Callable[..., Any]
  ) -> None:
    """Runs an instruction; `find` returns the link of a transfer."""
    key = (i.stage, i.microbatch)
    before = (i.stage - 1, i.microbatch)
    match i.op:
      case Op.FORWARD | Op.REDUNDANT_FORWARD:
        read = self.activations[before] if i.stage else ""
        self.activations[key] = mix(
            "forward", (step, *key), self.state[i.stage], read
        )
      case Op.BACKWARD:
        assert key in self.ledger.residuals, f"no residuals of {key}"
        read = self.activations[before] if i.stage else ""
        given = self.grads[key] if i.stage < _NUM_STAGES - 1 else ""
        grad = mix("backward", (step, *key), self.state[i.stage], read, given)
        entry = i.stage, i.microbatch // _PER_SHARE
        self.sums[entry] = mix(self.sums[entry], grad)
        self.grads[before] = grad
      case Op.SEND_ACTIVATION:
        find(i).send(self.activations[key])
      case Op.SEND_GRAD:
        find(i).send(self.grads[key])
      case Op.RECV_ACTIVATION:
        self.activations[key] = find(i).receive()
      case Op.RECV_GRAD:
        self.grads[key] = find(i).receive()
    self.ledger.add(i)


class Link:
  """A channel between two workers; the n-th value sent is the n-th received."""

  def __init__(self, worker: "Worker", channel: settle.Channel) -> None:
    self._worker, self._channel = worker, channel
    self._sent = worker.shared.wire[channel]

  def send(self, value: str) -> None:
    """See `runtime.wire.link`."""
    self._worker.log.begin(self._channel)
    self._put(value)

  def receive(self) -> str:
    """See `runtime.wire.link`."""
    self._worker.log.begin(self._channel)
    value = self._take()
    self._worker.log.check()
    return value

  def answer(self) -> None:
    """See `runtime.wire.link`."""
    self._worker.log.answer(self._channel)
    if self._channel.nodes[0] == self._worker.number:
      self._put(_FILLER)
    else:
      self._take()

  def _put(self, value: str) -> None:
    self._sent.append(value)
    self._worker.wake_soon(self._channel.nodes[1])

  def _take(self) -> str:
    worker, source = self._worker, self._channel.nodes[0]
    count = worker.taken[self._channel]
    worker.taken[self._channel] += 1
    worker.wait(lambda: len(self._sent) > count or worker.is_cut(source))
    if len(self._sent) <= count:
      raise OSError(f"node {source} is gone")
    return self._sent[count]


class Engine:
  """The node of a worker, as `runtime.engine` has it; and its links."""

  def __init__(self, worker: "Worker") -> None:
    self.nodes: dict[int, Node] = {}
    self.links = self
    self.owners, self.shares = (), ()
    self._worker = worker
    self._links: dict[settle.Channel, Link] = {}
    self._local: dict[settle.Channel, collections.deque[str]] = (
        collections.defaultdict(collections.deque)
    )

  def load_programs(self, node: int, stage: int) -> None:
    """See `runtime.engine`."""
    del stage
    if node == self._worker.number:
      self.nodes.setdefault(node, Node())

  def set_pipelines(self, owners: Any, shadows: Any, shares: Any) -> None:
    """See `runtime.engine`."""
    self.owners, self.shares = owners, shares
    held = [entry for row in owners for entry in enumerate(row)]
    held += [entry for replicas in shadows for entry in replicas.items()]
    for stage, node in held:
      self.load_programs(node, stage)
    for number, node in self.nodes.items():
      for stage in [s for s in node.state if (s, number) not in held]:
        del node.state[stage]

  def find(self, i: instruction_lib.Instruction) -> Any:
    """See `runtime.wire.links`."""
    ends = (self._worker.number, i.peer)
    is_grad = i.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    channel = settle.Channel(
        "grad" if is_grad else "activation",
        ends if i.is_send else ends[::-1],
        (i.stage,),
    )
    if ends[0] == ends[1]:
      queue = self._local[channel]
      return types.SimpleNamespace(send=queue.append, receive=queue.popleft)
    return self._links.setdefault(channel, Link(self._worker, channel))

  def answer(self, channel: settle.Channel) -> None:
    """See `runtime.wire.links`."""
    self._links.setdefault(channel, Link(self._worker, channel)).answer()

  def drain(self) -> None:
    """See `runtime.wire.links`."""
    self._local.clear()


@dataclasses.dataclass(frozen=True)
class Sums:
  """Sums of gradients that a member has, by stage and share."""

  found: Mapping[str, str]


class Step:
  """The phases of a step, as `train.step` has them."""

  can_go_on = True

  def __init__(self, worker: "Worker", engine: Engine, cohort: Cohort) -> None:
    self._worker, self._engine, self._cohort = worker, engine, cohort

  def begin(self, step: int, feed: Any, due: Any) -> None:
    """See `train.step`."""
    del feed, due
    self._step, self._totals = step, {}
    for node in self._engine.nodes.values():
      node.clear()

  def plan(self, timelines: Any) -> None:
    """See `train.step`."""
    self._order = linearize.linearize(timelines)

  def run_until_vote(self) -> None:
    """See `train.step`."""
    engine, me = self._engine, self._worker.number
    for node, instruction in self._order:
      if node in engine.nodes:
        self._cohort.check()
        if not instruction.is_transfer:
          self._worker.sleep(_PASS_SECS)
        engine.nodes[me].run(self._step, instruction, engine.find)
    self._cohort.check()
    found = {
        f"{stage} {share}": engine.nodes[me].sums[stage, share]
        for row, shares in zip(engine.owners, engine.shares, strict=True)
        for stage, node in enumerate(row)
        if node == me
        for share in shares
    }
    said = self._cohort.gather(f"sums {self._step}", Sums(found))
    self._totals = {}
    for sums in said.values():
      assert not self._totals.keys() & sums.found.keys(), "a sum of two"
      self._totals |= sums.found
    self._cohort.check()

  def vote(self, vote: step_lib.Vote) -> dict[int, step_lib.Vote]:
    """See `train.step`."""
    votes = self._cohort.gather(f"vote {self._step}", vote)
    self._cohort.settled(self._step + 1)
    return votes

  def apply(self) -> None:
    """See `train.step`."""
    for node in self._engine.nodes.values():
      for stage, state in node.state.items():
        totals = [self._totals[f"{stage} {s}"] for s in range(_NUM_SHARES)]
        node.state[stage] = mix(state, totals)

  def holdings(self) -> dict[int, holdings_lib.Holdings]:
    """See `train.step`."""
    return {n: d.ledger.holdings() for n, d in self._engine.nodes.items()}

  def compile(self, *, evaluate: bool) -> None:
    """See `train.step`."""
    del evaluate

  def bury(self) -> None:
    """See `train.step`."""

  def close(self) -> None:
    """See `train.step`."""


class Transfer:
  """Fetches state from other workers, as `train.state_transfer` does."""

  address = ("nowhere", 0)

  def __init__(self, worker: "Worker", engine: Engine, cohort: Cohort) -> None:
    self._worker, self._engine, self._cohort = worker, engine, cohort
    self._fetched: dict[tuple[int, int], str] = {}
    self.addresses: Mapping[int, Any] = {}
    self.fetched_for = -1

  def prefetch(self, copies: Iterable[Any], *, version: int) -> None:
    """See `train.state_transfer`."""
    copies, me, offered = list(copies), self._worker.number, {}
    for copy in copies:
      if copy.source == me:
        state = self._engine.nodes[me].state[copy.stage]
        offered[version, copy.stage] = state
    self._worker.offered = offered
    self._fetched, self.fetched_for = {}, version
    for copy in copies:
      if copy.destination == me:
        state = self._fetch(version, copy.source, copy.stage)
        self._fetched[me, copy.stage] = state

  def _fetch(self, version: int, source: int, stage: int) -> str:
    worker, other = self._worker, self._worker.shared.workers[source]
    is_there = lambda: (version, stage) in other.offered
    worker.wait(
        lambda: is_there() or worker.is_cut(source) or worker.is_interrupted
    )
    self._cohort.check()
    if not is_there():
      raise OSError(f"node {source} is gone")
    worker.sleep(_PASS_SECS)
    return other.offered[version, stage]

  def keep(
      self, states: Mapping[tuple[int, int], str], *, version: int
  ) -> None:
    """See `train.state_transfer`."""
    self._fetched, self.fetched_for = dict(states), version

  def install(self) -> None:
    """See `train.state_transfer`."""
    for (node, stage), state in self._fetched.items():
      self.put(node, stage, state)
    self._fetched = {}

  def put(self, node: int, stage: int, state: str) -> None:
    """See `train.state_transfer`."""
    self._engine.load_programs(node, stage)
    self._engine.nodes[node].state[stage] = state


class Files:
  """Checkpoints, log and all else that a worker has beside its nodes."""

  is_idle = True

  def __init__(self, worker: "Worker", engine: Engine, cohort: Cohort) -> None:
    self._worker, self._engine, self._cohort = worker, engine, cohort
    self._saved = worker.shared.saved_stages

  # As `checkpoint.writer`.

  def steps(self) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are complete."""
    whole = [s for s, h in self._saved.items() if len(h) == _NUM_STAGES]
    return tuple(s for s in sorted(whole) if s)

  # As `train.record.run_log`.

  def vote(self, *, seen: int, ready: Any, prints: Any, step: Any) -> Any:
    """See `run_log`."""
    del prints, step
    return step_lib.Vote(seen=seen, ready=ready)

  def commit(self, step: Step, votes: Any, *, saves: bool) -> None:
    """See `run_log`; saves every so many steps."""
    del step, votes, saves
    worker, node = self._worker, self._engine.nodes.get(self._worker.number)
    steps, wanted = worker.steps, states_after(worker.steps)
    held = node.state if node else {}
    wrong = {s: v for s, v in held.items() if v != wanted[s]}
    if steps % worker_lib.SAVE_STEPS == 0:
      self._saved[steps].update(held)
    worker.note_commit(f"{wrong}" if wrong else worker_lib.state_after(steps))

  def newest_ready(self) -> int:
    """See `train.background_compiler`."""
    return max(self._cohort.newest.number, self._cohort.view.number)

  @contextlib.contextmanager
  def during(self, what: str) -> Iterator[None]:
    """See `train.record.outputs`."""
    del what
    yield

  def is_due(self, steps: int) -> bool:
    """See `train.evaluation`."""
    del steps
    return False

  def __getattr__(self, name: str) -> Callable[..., None]:
    """What is called beside these has no result."""
    if name not in _IGNORED:
      raise AttributeError(name)
    return lambda *args, **options: None


_IGNORED = (
    *("abandon", "add", "begin", "check_now", "close", "compile", "follow"),
    *("hear", "note_ready", "prepare", "prepare_nodes", "roll_back", "say"),
    *("save_last", "show", "warn_of_save", "welcome", "write_summary", "wait"),
)


class Worker(worker_lib.Worker):
  """A simulated process in which `train.worker.Worker` runs."""

  FAILURES = (OSError, RuntimeError, ValueError)

  def _make_work(self) -> Thread:
    self.taken: collections.Counter[settle.Channel] = collections.Counter()
    self.offered: dict[tuple[int, int], str] = {}
    self.log = transfer_log.TransferLog()
    self.shared.workers[self.number] = self
    self.shared.saved_stages[0] = dict(enumerate(states_after(0)))
    self._cut: set[int] = set()
    self._loop: train_worker.Worker | None = None
    self.thread = Thread(self._train)
    return self.thread

  def end(self) -> None:
    """See `worker.Worker`."""
    super().end()
    self.thread.kill()

  @property
  def steps(self) -> int:
    """Steps that it has committed; -1 before it has any state."""
    return self._loop.state.steps if self._loop else -1

  @property
  def epoch(self) -> int:
    """Which life of the run it trains in; how often that went back."""
    rollbacks = self._loop.state.rollbacks if self._loop else 0
    return self.client.adopted.epoch * 1000 + rollbacks

  @property
  def is_interrupted(self) -> bool:
    """Whether a member is gone."""
    return self.client.is_interrupted

  def wait(self, condition: Callable[[], bool]) -> None:
    """Waits in the thread."""
    self.thread.wait(condition, None)

  def sleep(self, secs: float) -> None:
    """Lets time pass in the thread."""
    self.thread.wait(lambda: False, secs)

  def wake_soon(self, node: int) -> None:
    """Lets a worker look whether what it waits for has come."""
    if (other := self.shared.workers.get(node)) is not None:
      self._clock.at(_LINK_SECS, other._look)

  def is_cut(self, node: int) -> bool:
    """Whether a transfer with a node has failed."""
    members = {m.number: m for m in self.client.adopted.members}
    is_gone = node in members and self.shared.is_gone(members[node].host)
    return is_gone or node in self._cut

  def note_commit(self, state: str) -> None:
    """Says that it has committed a step, with this state."""
    view = self.client.adopted.number
    self.shared.on_commit(self, view, self.epoch, self.steps, state)

  def _on_lost(self, view: views.View) -> Any:
    self._cut |= self.client.adopted.numbers - view.numbers
    return cluster_cohort.stop_transfers(self.log, view)

  def _begun(self) -> settle.Begun:
    return self.log.begun()

  def _train(self) -> None:
    client = Client(self)
    era = client.wait_era()
    client.send("era", number=era.number)
    self.claim, _ = self.shared.fence.read()
    self.sleep(worker_lib.INIT_SECS)
    cohort, engine = Cohort(client, self.log), Engine(self)
    self._loop = self._make_loop(client, cohort, engine)
    self._loop.run()

  def _check_fence(self, epoch: int) -> None:
    claim = dataclasses.replace(self.claim, epoch=epoch)
    fence_lib.check(self.shared.fence, claim)

  def _make_loop(
      self, client: Client, cohort: Cohort, engine: Engine
  ) -> train_worker.Worker:
    """Returns the real worker; what it makes itself is of arrays and files."""
    rules, rows = _make_rules()
    files = Files(self, engine, cohort)
    transfer = Transfer(self, engine, cohort)
    state = run_state.RunState(
        engine, cohort, transfer=transfer, rules=rules, writer=files
    )
    state._restore = lambda steps, layout: {
        (node, stage): self.shared.saved_stages[steps][stage]
        for roles in layout.roles
        for stage, node in [*enumerate(roles.owners), *roles.shadows.items()]
        if node == self.number
    }
    transfers = switch_session.SessionSwitch(
        client, self.log, era=0, host="", preconnects=False
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
            first_layout=rules.start(
                [rows.pipeline(p) for p in range(_NUM_SHARES)]
            ),
        ),
        _given=environment.Environment(
            cohort=cohort,
            workdir=None,
            transfers=transfers,
            check_fence=self._check_fence,
            started_secs=0.0,
        ),
        _cohort=cohort,
        _step=Step(self, engine, cohort),
        _transfer=transfer,
        _writer=files,
        _outputs=files,
        _log=files,
        _check=files,
        _evaluation=files,
        _compiler=files,
        _evaluates=False,
        _batches=types.SimpleNamespace(microbatch=print),
        _begun=-1,
        _plans=step_plans.StepPlans(rows),
    )
    recover = loop._recover

    def recover_from(error: Exception) -> None:
      if not isinstance(error, self.FAILURES):
        raise error  # No death explains it.
      recover(error)

    loop._recover = recover_from
    return loop
