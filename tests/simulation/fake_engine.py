"""The nodes of `trainer`: hashes in place of arrays, programs and files.

What a pass returns is the hash of step, stage, microbatch and all that it has
read, so a value that is paired wrongly, used twice or taken from a filler
changes the state. Methods are those of the classes that they stand for.
"""

import collections
from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import hashlib
import types

import numpy as np

from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.recovery import assignment
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.train import state_transfer
from bamboo_jax.train import step as step_lib
from tests import layouts
from tests.simulation import worker as worker_lib

Op = instruction_lib.Op
_NUM_SHARES = 2
_PER_SHARE = 4
_PASS_SECS = 0.02
_FILLER = "filler"
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
        reroute=reroute if layout != "deep" else "pipeline",
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


class Link:
  """A channel between two workers; the n-th value sent is the n-th received."""

  def __init__(self, worker, channel):
    self._worker, self._channel = worker, channel
    self._sent = worker.shared.wire[worker.stamp, channel]

  def send(self, value):
    self._worker.log.begin(self._channel)
    self._put(value)

  def receive(self):
    self._worker.log.begin(self._channel)
    value = self._take()
    self._worker.log.check()
    return value

  def answer(self):
    self._worker.log.answer(self._channel)
    if self._channel.nodes[0] == self._worker.number:
      self._put(_FILLER)
    else:
      self._take()

  def _put(self, value):
    self._sent.append(value)
    self._worker.wake_soon(self._channel.nodes[1])

  def _take(self):
    worker, source = self._worker, self._channel.nodes[0]
    count = worker.taken[self._channel]
    worker.taken[self._channel] += 1
    worker.wait(lambda: len(self._sent) > count or worker.is_cut(source))
    if len(self._sent) <= count:
      raise OSError(f"node {source} is gone")
    return self._sent[count]


class Engine:
  """The node of a worker, as `runtime.engine` has it; and its links."""

  def __init__(self, worker):
    self.nodes = {}
    self.links = self
    self._worker = worker
    self._links = {}
    self._local = collections.defaultdict(collections.deque)

  def load_programs(self, node, stage):
    if node == self._worker.number:
      self.nodes.setdefault(node, Node(self._worker.setup.num_stages))

  def set_pipelines(self, owners, shadows, shares, lines=None, kept=()):
    self.lines = lines or [*zip(owners, shares, strict=True)]
    held = [entry for row in owners for entry in enumerate(row)]
    held += [entry for replicas in shadows for entry in replicas.items()]
    for stage, node in held:
      self.load_programs(node, stage)
    held += [(stage, node) for node, stage in kept]
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
    return self._links.setdefault(channel, Link(self._worker, channel))

  def answer(self, channel):
    self._links.setdefault(channel, Link(self._worker, channel)).answer()

  def drain(self, alive):
    del alive
    self._local.clear()


@dataclasses.dataclass(frozen=True)
class Sums:
  """Sums of gradients that a member has, by stage and share."""

  found: Mapping[str, str]


class Step(step_lib.Step):
  """The phases of a step; what is not here is that of `train.step`."""

  def __init__(self, worker, engine, cohort):
    self._worker, self._engine, self._cohort = worker, engine, cohort

  def begin(self, step, feed, due):
    self._step, self._totals = step, {}
    for node in self._engine.nodes.values():
      node.clear()

  def run_until_vote(self):
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

  def holdings(self):
    return {n: d.ledger.holdings() for n, d in self._engine.nodes.items()}

  def compile(self, *, evaluate):
    pass

  def bury(self):
    pass

  def close(self):
    pass


class Peers:
  """What a worker offers to others."""

  def __init__(self, offered):
    self._offered = offered
    self.offer = offered.__setitem__

  def clear(self, prefix):
    assert all(name.startswith(prefix) for name in self._offered)
    self._offered.clear()


class Transfer(state_transfer.StateTransfer):
  """Fetches state from other workers, without sockets."""

  def __init__(self, worker, engine, cohort):
    super().__init__(engine, cohort, Peers(worker.offered))
    self._worker = worker

  def _fetch(self, copy, version):
    worker, other = self._worker, self._worker.shared.workers[copy.source]
    if other is worker:
      return super()._fetch(copy, version)
    name = self._name(copy, version)
    is_there = lambda: name in other.offered
    is_over = lambda: worker.is_cut(copy.source) or worker.is_interrupted
    worker.wait(lambda: is_there() or is_over())
    self._cohort.check()
    if not is_there():
      raise OSError(f"node {copy.source} is gone")
    worker.sleep(_PASS_SECS)
    (state,) = np.frombuffer(other.offered[name], f"U{_DIGITS}")
    return str(state)


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

  def vote(self, *, seen, ready, prints, step):
    return step_lib.Vote(seen=seen, ready=ready)

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
    *("abandon", "add", "begin", "check_now", "close", "compile", "follow"),
    *("hear", "note_ready", "prepare", "prepare_nodes", "roll_back", "say"),
    *("save_last", "show", "warn_of_save", "welcome", "write_summary", "wait"),
)
