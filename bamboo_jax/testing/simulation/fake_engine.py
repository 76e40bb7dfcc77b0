"""The nodes of `trainer`: hashes in place of arrays, programs and files.

What a pass returns is the hash of step, stage, microbatch and all that it has
read, so a value that is paired wrongly or used twice changes the state. Methods
are those of the classes that they stand for.
"""

import collections
from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import hashlib
import types

from bamboo_jax import base
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import assignment
from bamboo_jax.runtime import filler as filler_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.testing import layouts
from bamboo_jax.testing.simulation import worker as worker_lib
from bamboo_jax.train import step as step_lib

Op = instruction_lib.Op
_NUM_SHARES = 2
_PER_SHARE = 4
_PASS_SECS = 0.02
_DIGITS = 16


def mix(*parts):
  """Returns the hash of some values."""
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:_DIGITS]


@functools.cache
def states_after(steps, num_stages):
  """Returns the state of each stage after so many steps without faults."""
  if not steps:
    return tuple(mix("start", s) for s in range(num_stages))
  states, step = states_after(steps - 1, num_stages), steps - 1
  sums = collections.defaultdict(str)
  for microbatch in range(_NUM_SHARES * _PER_SHARE):
    outputs, grad = [""], ""
    for stage, state in enumerate(states):
      key = (step, stage, microbatch)
      outputs.append(mix("forward", key, state, outputs[-1]))
    for stage in reversed(range(num_stages)):
      key = (step, stage, microbatch)
      grad = mix("backward", key, states[stage], outputs[stage], grad)
      entry = stage, microbatch // _PER_SHARE
      sums[entry] = mix(sums[entry], grad)
  total = lambda s: [sums[s, share] for share in range(_NUM_SHARES)]
  return tuple(mix(state, total(s)) for s, state in enumerate(states))


@dataclasses.dataclass(frozen=True)
class Setup:
  """Rules and rows of a run; `num_stages` counts what is never split."""

  rules: assignment.Rules
  rows: rows_lib.RowPlanner
  num_pipelines: int

  @property
  def num_stages(self):
    return self.rules.segments.num_stages

  @property
  def first_layout(self):
    pipelines = map(self.rows.pipeline, range(self.num_pipelines))
    return self.rules.start([*pipelines])


@functools.cache
def make_setup(layout, reroute):
  """Returns the setup of a layout of `plans.LEAST`."""
  if layout == "templates":
    rules = layouts.make_template_rules(4, _NUM_SHARES, reroute=reroute)
    num_stages, mode = 2, "lazy"
  else:
    num_stages = 4 if layout == "deep" else 2
    mode = "eager" if layout == "replicas" else "none"
    # So short that new pipelines are made once there are enough nodes.
    rules = layouts.make_rules(
        *(num_stages, _NUM_SHARES),
        mode=mode,
        layer_secs=1e-5,
        reroute=reroute,
        fold=layout == "replicas",
    )
  num_pipelines = 1 if layout == "deep" else _NUM_SHARES
  rows = layouts.make_rows(
      layouts.make_profile(rules.segments.num_layers),
      mode,
      num_stages=num_stages,
      num_pipelines=num_pipelines,
      num_shares=_NUM_SHARES,
      per_share=_PER_SHARE,
      segments=rules.segments,
  )
  return Setup(rules, rows, num_pipelines)


class Node:
  """What a node holds: hashes, as `runtime.node` holds arrays."""

  def __init__(self, num_stages):
    self.state = {}
    self._num_stages = num_stages
    self.clear()

  def clear(self):
    self.ledger = holdings_lib.Ledger()
    self.activations = {}
    self.grads = {}
    self.sums = collections.defaultdict(str)

  def put_state(self, stage, state):
    self.state[stage] = state

  def run(self, step, i, find):
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
        given = self.grads[key] if i.stage < self._num_stages - 1 else ""
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


class Transport:
  """Values between two workers; stands for `runtime.wire.transport`.

  The n-th value of a channel that is sent in an attempt is the n-th received.
  """

  def __init__(self, worker):
    self._worker = worker
    self._attempt, self._interrupted = 0, None
    self._taken = collections.Counter()
    self._waits_for = None
    self.address = f"node {worker.number}"

  def begin(self, attempt):
    assert attempt > self._attempt, "an attempt that is over"
    self._attempt, self._interrupted = attempt, None
    self._taken.clear()
    worker = self._worker
    worker.shared.attempts[worker.stamp, worker.number] = attempt
    for node in self._worker.client.adopted.numbers:
      worker.wake_soon(node)

  def interrupt(self, why):
    self._interrupted = why

  def check(self):
    if self._interrupted is not None:
      raise base.AttemptOverError(self._interrupted)

  def send(self, node, channel, arrays):
    self.check()
    key = self._key(self._worker.number, node, channel)
    self._worker.shared.wire[key].append(arrays)
    self._worker.wake_soon(node)

  def receive(self, node, channel):
    worker, attempts = self._worker, self._worker.shared.attempts
    sent = worker.shared.wire[self._key(node, worker.number, channel)]
    place = self._taken[node, channel]
    self._taken[node, channel] += 1
    is_over = lambda: (
        self._interrupted is not None
        or worker.is_cut(node)
        or attempts[worker.stamp, node] > self._attempt
    )
    self._waits_for = node
    worker.wait(lambda: len(sent) > place or is_over())
    self._waits_for = None
    self.check()
    if len(sent) > place:
      return sent[place]
    if worker.is_cut(node):
      raise base.PeerRemovedError(node, "it is gone")
    raise base.AttemptOverError(f"node {node} is ahead")

  def open_receives(self):
    waits = [] if self._waits_for is None else [self._waits_for]
    return [types.SimpleNamespace(node=node) for node in waits]

  def set_addresses(self, addresses):
    assert all(addresses.values()), addresses

  def connect(self, nodes):
    pass

  def keep_only(self, nodes, why):
    pass

  def _key(self, source, destination, channel):
    stamp = self._worker.stamp
    return stamp, self._attempt, source, destination, channel


class Engine:
  """The node of a worker, as `runtime.engine` has it; and its links."""

  def __init__(self, worker):
    self.nodes = {}
    self.exchange = worker.transport
    stages = range(worker.setup.num_stages)
    self.specs = [types.SimpleNamespace(state="") for _ in stages]
    self._worker = worker
    self._local = collections.defaultdict(collections.deque)

  def load_programs(self, node, stage):
    if node == self._worker.number:
      self.nodes.setdefault(node, Node(self._worker.setup.num_stages))

  def set_pipelines(self, owners, shadows, shares, lines=None):
    self.lines = lines or [*zip(owners, shares, strict=True)]
    held = [entry for row in owners for entry in enumerate(row)]
    held += [entry for replicas in shadows for entry in replicas.items()]
    for stage, node in held:
      self.load_programs(node, stage)
    for number, node in self.nodes.items():
      for stage in [s for s in node.state if (s, number) not in held]:
        del node.state[stage]

  def find(self, i):
    ends = (self._worker.number, i.peer)
    is_grad = i.op in (Op.SEND_GRAD, Op.RECV_GRAD)
    channel = channel_lib.Channel(
        "grad" if is_grad else "activation",
        ends if i.is_send else ends[::-1],
        (i.stage,),
    )
    if ends[0] == ends[1]:
      queue = self._local[channel]
      return types.SimpleNamespace(send=queue.append, receive=queue.popleft)
    (source, destination), name = channel.nodes, str(channel)
    return types.SimpleNamespace(
        send=lambda value: self.exchange.send(destination, name, [value]),
        receive=lambda: self.exchange.receive(source, name)[0],
    )

  def drain(self, alive):
    del alive
    self._local.clear()


@dataclasses.dataclass(frozen=True)
class Sums:
  """Sums of gradients that a member has, by stage and share."""

  found: Mapping[str, str]


class Rows:
  """An executor whose rows the step below runs; see `runtime.executor`."""

  def __init__(self, engine):
    self.filler, self.order = filler_lib.Filler(), ()
    self._engine = engine

  def plan(self, timelines, filling=None):
    del filling
    self.order = linearize.linearize(timelines)

  def holdings(self, *, is_begun):
    nodes = self._engine.nodes.items() if is_begun else ()
    return {n: node.ledger.holdings() for n, node in nodes}

  def can_continue(self):
    return True

  def planned_passes(self, secs):
    del secs


class Step(step_lib.Step):
  """The phases of a step; what is not here is that of `train.step`."""

  def __init__(self, worker, engine, cohort):
    self._worker, self._engine, self._cohort = worker, engine, cohort
    self.executor, self._phase_secs = Rows(engine), {"compute": 0.0}

  def begin(self, step, feed, due):
    self._step, self._totals, self._planned = step, {}, ()
    for node in self._engine.nodes.values():
      node.clear()

  def run_until_vote(self):
    engine, me = self._engine, self._worker.number
    for node, instruction in self.executor.order:
      if node in engine.nodes:
        self._cohort.check()
        if not instruction.is_transfer:
          self._worker.sleep(_PASS_SECS)
        engine.nodes[me].run(self._step, instruction, engine.find)
    self._cohort.check()
    found = {
        f"{stage} {share}": engine.nodes[me].sums[stage, share]
        for row, shares in engine.lines
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

  def vote(self, vote):
    votes = self._cohort.gather(f"vote {self._step}", vote)
    self._cohort.settled(self._step + 1)
    return votes

  def apply(self):
    for node in self._engine.nodes.values():
      for stage, state in node.state.items():
        totals = [self._totals[f"{stage} {s}"] for s in range(_NUM_SHARES)]
        node.state[stage] = mix(state, totals)

  def compile(self, *, evaluate):
    pass

  def bury(self):
    pass

  def close(self):
    pass


class Files:
  """Checkpoints, log and all else that a worker has beside its nodes."""

  is_idle = True

  def __init__(self, worker, engine, cohort):
    self._worker, self._engine, self._cohort = worker, engine, cohort
    self._saved = worker.shared.saved_stages

  # As `checkpoint.writer`.

  def steps(self):
    """Returns the steps whose checkpoints are complete."""
    num_stages = self._worker.setup.num_stages
    whole = [s for s, h in self._saved.items() if len(h) == num_stages]
    return tuple(s for s in sorted(whole) if s)

  # As `train.record.run_log`.

  def vote(self, *, seen, ready, prints, stops, step):
    return step_lib.Vote(seen=seen, ready=ready, stops=stops)

  def commit(self, step, votes, *, saves):
    worker, node = self._worker, self._engine.nodes.get(self._worker.number)
    steps = worker.steps
    wanted = states_after(steps, worker.setup.num_stages)
    held = node.state if node else {}
    wrong = {s: v for s, v in held.items() if v != wanted[s]}
    if steps % worker_lib.SAVE_STEPS == 0:
      self._saved[steps].update(held)
    worker.note_commit(f"{wrong}" if wrong else worker_lib.state_after(steps))

  def newest_ready(self):
    return max(self._cohort.newest.number, self._cohort.view.number)

  @contextlib.contextmanager
  def during(self, what):
    yield

  def __getattr__(self, name):
    """What is called beside these asks only who writes."""
    if name not in _IGNORED:
      raise AttributeError(name)
    return self._ask_who_writes

  def _ask_who_writes(self, *args, **options):
    if self._worker.loop is not None:
      assert self._worker.loop.state.is_writer in (False, True)


_IGNORED = (
    *("abandon", "add_loss", "begin", "check_now", "close", "compile"),
    *("explain", "explain_change", "explain_view", "follow", "hear", "meet"),
    *("note_ready", "prepare", "prepare_nodes", "roll_back", "say"),
    "note_damaged",
    *("save_last", "show", "warn_of_save", "welcome", "write_summary", "wait"),
)
