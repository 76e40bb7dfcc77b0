"""Members in one process; `vote` stands for a step of all of them."""

import collections
from concurrent import futures
import dataclasses
import errno
import functools
import json
import pathlib
import secrets
import shutil
import threading
import time
from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.base import files, json as json_lib
from bamboo_jax.checkpoint import (
    folder as folder_lib,
    identity as identity_lib,
    manifest as manifest_lib,
    parts,
    writer as writer_lib,
)
from bamboo_jax.models import zoo
from bamboo_jax.runtime.stage import spec as spec_lib
from tests import folders

_MODEL = zoo.make_model(
    "tests.mlp_bn:make_mlp_bn", num_blocks=2, width=4, sequence_length=4, vocab_size=8
)
_NAMES = _MODEL.layer_names


def _spec_of(model, batch):
  return spec_lib.StageSpec(
      model=model, first=0, last=len(model.layers), batch=batch, optimizer=optax.adamw(1e-3)
  )


_SPEC = _spec_of(
    _MODEL, {key: jax.ShapeDtypeStruct((2, 4), np.int32) for key in ("inputs", "targets")}
)
_IDENTITY = identity_lib.RunIdentity(
    seed=0, batch_size=4, model={"width": 4}, data={"name": "none"}
)
_OWNERS = ((0, 1), (2, 3))  # Stage 0 is written by 0, stage 1 by 3.
_ALONE = ((0, 0), (0, 0))


def _states(step):
  """Returns the state of two stages, whose numbers depend on the step."""
  shapes = _SPEC.state
  numbers = lambda a: (np.arange(a.size) + step).astype(a.dtype)
  layers = jax.tree.map(lambda a: numbers(a).reshape(a.shape), shapes)
  halves = (_NAMES[:2], _NAMES[2:])
  return {stage: {name: layers[name] for name in names} for stage, names in enumerate(halves)}


class WriterCase(folders.FolderCase):
  """Makes writers in the folder `root`; their `warnings` have the member and the step."""

  def setUp(self):
    super().setUp()
    self.root = self.folder.resolve() / "checkpoints"
    self.warnings = []

  def make(self, member=0, *, keep=2, every_steps=2, model=_SPEC):
    writer = writer_lib.Writer(
        self.root,
        keep=keep,
        every_steps=every_steps,
        member=member,
        model=model,
        identity=_IDENTITY,
        warn=lambda step, text: self.warnings.append((member, step, text)),
        check_fence=lambda: None,
    )
    self.addCleanup(writer.close)
    return writer


class WriterTest(WriterCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.object(secrets, "token_hex", lambda size: "ab"))
    self.use(_OWNERS)

  def use(self, owners):
    """Begins with one writer for each member."""
    self.owners = owners
    members = sorted({m for row in owners for m in row})
    self.writers = {m: self.make(m) for m in members}

  def around(self, member, step, view):
    own = {stage for row in self.owners for stage, owner in enumerate(row) if owner == member}
    states = {stage: state for stage, state in _states(step).items() if stage in own}
    return {"view": view, "owners": self.owners, "states": states}

  def hear(self, step, said, member, *, view=1):
    self.writers[member].hear(step, said, **self.around(member, step, view))
    self.writers[member]._wait(lambda: None)

  def vote(self, step, *, view=1, silent=(), instead=None):
    """Lets all commit a step, with all parts written and sent since the last.

    Args:
      step: Number of steps done.
      view: Number of the view.
      silent: Members that say nothing of their parts, but `instead`.
    """
    said = {m: writer.say(step, after=step - 1) for m, writer in self.writers.items()}
    for member in silent:
      changes = instead or {"save": None, "part": None}
      said[member] = dataclasses.replace(said[member], **changes)
    said = json_lib.from_plain(dict[int, parts.PartsReport], json_lib.to_plain(said))
    for member in self.writers:
      self.hear(step, said, member, view=view)

  def vote_all(self, *steps, view=1):
    for step in steps:
      self.vote(step, view=view)

  @parameterized.parameters("params", "slots")
  def test_what_is_not_finite_replaces_nothing(self, part):
    self.vote_all(2, 3)
    name = next(n for n in _NAMES[2:] if _SPEC.state[n].params)

    def spoil(step, make_states=_states):
      states = make_states(step)
      layer = states[1][name]
      bad = jax.tree.map(lambda a: a * np.nan, getattr(layer, part))
      states[1][name] = layer.replace(**{part: bad})
      return states

    with mock.patch.dict(globals(), _states=spoil):
      self.vote_all(*range(4, 10))
    self.assertEqual(self.writers[0].steps(), (2,))
    _, _, text = self.warnings[-1]
    self.assertRegex(text, f"Cannot save step 8 .*: {name}: {part}/.* is not finite")
    self.vote_all(10, 11)
    self.assertIn(10, self.writers[0].steps())

  def save_last(self, step, *, view=1):
    """Lets all save their last state; returns the error of each."""
    meeting = _Meeting(len(self.writers))

    def save(member):
      self.writers[member].save_last(
          step,
          functools.partial(meeting.gather, member),
          waiting=lambda: None,
          **self.around(member, step, view),
      )

    with futures.ThreadPoolExecutor(len(self.writers)) as pool:
      errors = [pool.submit(save, m).exception for m in self.writers]
      return [error() for error in errors]

  def listed(self):
    """Returns the saves in the folder, by step and view; and which are complete."""
    saves = sorted(p.parent.name + p.name.partition(".")[0] for p in self.root.glob("*/v*"))
    return saves, [int(p.name.partition(".")[0]) for p in sorted(self.root.glob("*.json"))]

  def assert_restores(self, step):
    found = self.make(7).restore(step, _NAMES)
    wanted = {}
    for state in _states(step).values():
      wanted |= state
    self.assertEqual(list(found), list(_NAMES))
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True), found, wanted)

  @parameterized.named_parameters(
      ("all_in_one", _ALONE, ["node0"]),
      ("one_node_each", _OWNERS, ["node0", "node3"]),
      ("who_joins_owns_all_parts", ((1, 2), (3, 1)), ["node1"]),
  )
  def test_parts_become_a_checkpoint(self, owners, items):
    self.use(owners)
    begin_secs = time.perf_counter()
    self.vote_all(*range(1, 6))
    took_secs = time.perf_counter() - begin_secs
    for member, writer in self.writers.items():
      self.assertEqual(writer.steps(), (2, 4), member)
      if f"node{member}" in items:
        self.assertGreater(writer.rate, writer._num_bytes / took_secs)
    self.assertEqual(self.listed(), (["2v1", "4v1"], [2, 4]))
    self.assert_restores(2)
    self.assert_restores(4)
    self.assertEqual(self.warnings, [])
    name = "4.v1.2-ab"
    manifest = json.loads((self.root / f"{name}.json").read_text())
    found = [e["item"] for e in manifest["layers"].values()]
    self.assertEqual({*found}, {f"4/v1.2-ab/{item}" for item in items})
    self.assertEqual(list(manifest["layers"]), list(_NAMES))
    self.assertEqual(manifest["meta"], _IDENTITY.describe(4) | {"save": name})

  def test_no_checkpoint_before_all_parts_are_heard(self):
    self.vote(2)
    self.vote(3, silent=[3])
    self.vote(3, silent=[3], instead={"save": "2.v0.1-ab"})  # Of another save.
    self.assertEqual(self.listed(), (["2v1"], []))
    self.vote(4)  # Too early for the next one, but all parts have come.
    self.assertEqual(self.listed(), (["2v1"], [2]))
    ((member, step, text),) = self.warnings
    self.assertEqual((member, step), (0, 4))
    self.assertRegex(text, "save of step 4 is skipped")
    self.vote_all(5, 6, 7)
    self.assertEqual(self.listed()[1], [2, 6])
    self.vote(8)
    self.vote(9, silent=[3])
    self.vote(10)
    self.assertLen(self.warnings, 1)  # The next ones are only counted.
    with self.assertLogs("absl", "WARNING") as logs:
      self.writers[0].close()
    self.assertIn("2 saves were skipped", logs.output[0])

  def test_a_folder_that_gives_errors_for_a_while_is_asked_again(self):
    self.vote_all(2, 3)
    look, fails = pathlib.Path.iterdir, iter([True, True])

    def fail(path):
      if next(fails, False):
        raise OSError(errno.ESTALE, "Stale file handle")
      return look(path)

    with mock.patch.object(pathlib.Path, "iterdir", fail):
      self.assertEqual(self.writers[3].steps(), (2,))

  def test_alone_each_save_waits_for_the_one_before(self):
    self.use(_ALONE)
    free, finish = threading.Event(), folder_lib.CheckpointFolder.finish
    self.addCleanup(free.set)

    def wait_and_finish(*args, **options):
      self.assertTrue(free.wait(60))
      finish(*args, **options)

    self.enterContext(mock.patch.object(folder_lib.CheckpointFolder, "finish", wait_and_finish))
    (writer,) = self.writers.values()
    writer.hear(2, {0: writer.say(2, after=1)}, **self.around(0, 2, 1))  # Blocks not.
    self.assertEqual(self.listed()[1], [])
    with futures.ThreadPoolExecutor(1) as pool:
      steps = pool.submit(writer.steps)
      self.assertFalse(steps.done())
      free.set()
      self.assertEqual(steps.result(), (2,))
    for step in (4, 6):
      said = {0: writer.say(step, after=step - 1)}
      writer.hear(step, said, **self.around(0, step, 1))
    self.assertEqual(writer.steps(), (4, 6))
    self.assertEqual(self.warnings, [])

  @parameterized.parameters(3, 0)
  def test_a_death_abandons_and_the_next_save_works(self, dead):
    self.vote(2)
    for writer in self.writers.values():
      writer.abandon()
    self.vote(3, view=2)  # Parts of the former view make no checkpoint.
    self.assertEqual(self.listed(), (["2v1"], []))
    self.writers[dead] = self.make(dead)  # A newcomer.
    self.vote_all(4, 5, view=2)
    self.assertIn("4v2", self.listed()[0])
    self.assertEqual(self.listed()[1], [4])
    self.assert_restores(4)

  def test_parts_of_an_abandoned_save_are_not_those_of_its_step_later(self):
    self.vote(2)
    self.vote(3, silent=[3])  # All have the part of 0.
    for writer in self.writers.values():
      writer.abandon()
    self.vote(2, view=2)  # Rolled back; 0 writes it anew.
    self.vote(3, view=2, silent=[0])
    self.assertEqual(self.listed(), (["2v2"], []))
    self.vote(4, view=2)
    self.assert_restores(2)

  def test_a_part_that_fails_is_told(self):
    (self.root / "2").write_text("in the way")
    self.vote(2)
    (self.root / "2").unlink()
    self.vote(3)
    ((member, step, text),) = self.warnings
    self.assertEqual((member, step), (0, 2))
    self.assertRegex(text, "Cannot save step 2 to .*: (node |n)0: (File exists|Not a directory).$")
    self.vote_all(4, 5)
    self.assertEqual(self.writers[0].steps(), (4,))

  @parameterized.parameters([_OWNERS], [_ALONE])
  def test_the_writer_removes_what_was_left_unfinished(self, owners):
    self.use(owners)
    for left in ("1/v0.0-ab", "9/v9.0-ab"):  # Another run may have gone further.
      (self.root / left).mkdir(parents=True)
    said = {m: writer.say(2, after=1) for m, writer in self.writers.items()}
    for member in sorted(said, reverse=True):
      self.assertIn("1v0", self.listed()[0])
      self.hear(2, said, member)
    self.assertEqual(self.listed()[0], ["2v1"])

  @parameterized.parameters("node0", "node3")
  def test_a_part_that_is_gone_makes_no_checkpoint(self, item):
    self.vote(2)
    (path,) = (self.root / "2").iterdir()
    (path / item).rename(path / "elsewhere")
    self.vote_all(3, 5)
    ((_, _, text),) = self.warnings
    self.assertRegex(text, f"{item}/.* is missing; .* a folder that they share")
    self.assertEqual(self.listed()[1], [])

  @parameterized.product(
      owners=[_OWNERS, _ALONE],
      votes_and_step=[
          ((2, 3, 4, 5), 4),  # Saved before.
          ((2, 3, 4), 4),  # In flight.
          ((4,), 5),  # Another in flight.
          ((), 3),
      ],
  )
  def test_last(self, owners, votes_and_step):
    self.use(owners)
    votes, step = votes_and_step
    self.vote_all(*votes)
    self.assertEqual(self.save_last(step), [None] * len(self.writers))
    self.assertEqual(self.listed()[1][-1], step)
    self.assert_restores(step)
    self.assertEqual(self.warnings, [])

  @parameterized.parameters([_OWNERS], [_ALONE])
  def test_a_step_that_is_done_again_from_the_start_is_saved_again(self, owners):
    self.use(owners)
    self.save_last(3)
    for writer in self.writers.values():  # What was saved was damaged.
      writer.restore(0, _NAMES)
      self.assertEqual(writer.steps(), ())
    self.assertEqual(self.save_last(3, view=2), [None] * len(self.writers))
    for writer in self.writers.values():
      self.assertEqual(writer.steps(), (3,))

  @parameterized.parameters([_OWNERS], [_ALONE])
  def test_last_fails(self, owners):
    self.use(owners)
    (self.root / "3").write_text("in the way")
    for error in self.save_last(3):  # On all members.
      self.assertIsInstance(error, base.CheckpointError)
      self.assertRegex(str(error), "Cannot save step 3 to .*: (File exists|Not a directory).")
    self.assertEqual([w[:2] for w in self.warnings], [(0, 3)] * 2)  # Two tries.

  @parameterized.parameters([_OWNERS], [_ALONE])
  def test_a_folder_that_was_removed_is_made_again(self, owners):
    self.use(owners)
    for save in (lambda: self.vote(4), lambda: self.save_last(5)):
      shutil.rmtree(self.root)
      with mock.patch.object(files, "_PATIENCE_SECS", 0.0):
        save()
        self.vote(5)
    self.assertEqual(self.warnings, [])
    self.assertEqual(self.listed()[1], [5])
    shutil.rmtree(self.root.parent)  # As if its mount were away.
    self.vote_all(6, 7)
    self.assertFalse(self.root.parent.exists())
    self.root.parent.mkdir()
    self.assertRegex(self.warnings[0][2], "Cannot save step 6 to .*: No such f")

  def test_last_works_at_the_second_try(self):
    self.use(_ALONE)
    usage = shutil.disk_usage("/")
    tries = [usage._replace(free=1), usage]
    with mock.patch.object(shutil, "disk_usage", side_effect=tries):
      self.assertEqual(self.save_last(3), [None])
    self.assertEqual(self.listed()[1], [3])
    ((_, _, text),) = self.warnings
    self.assertRegex(
        text, "Cannot save step 3 to .*: No space left .*: .* MB needed, 0.0 MB free.$"
    )


class _Meeting:
  """Where threads that stand for members tell each other something."""

  def __init__(self, num_members):
    self._barrier = threading.Barrier(num_members)
    self._said = collections.defaultdict(dict)

  def gather(self, member, key, value):
    plain = json.loads(json.dumps(json_lib.to_plain(value)))
    self._said[key][member] = json_lib.from_plain(type(value), plain)
    self._barrier.wait(60)
    return self._said[key]


_ADAPTED = zoo.make_model("llama", variant="tiny", num_blocks=1, lora_rank=2)
_ADAPTED_SPEC = _spec_of(_ADAPTED, _ADAPTED.batch_shapes(1))


class FrozenTest(WriterCase):
  """Weights that are never trained."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.layers = spec_lib.init_layers(_ADAPTED_SPEC)

  def start(self):
    """Returns a writer, as each start of a run makes one."""
    return self.make(keep=3, every_steps=0, model=_ADAPTED_SPEC)

  def save(self, writer, step):
    around = dict(view=1, owners=((0,),), states={0: self.layers})
    writer.save_last(step, lambda what, value: {0: value}, waiting=lambda: None, **around)

  def assert_restores(self, step):
    found = self.start().restore(step, [*self.layers])
    jax.tree.map(np.testing.assert_array_equal, found, self.layers)

  def num_bytes(self, *folders):
    return sum(p.stat().st_size for f in folders for p in (self.root / f).rglob("*") if p.is_file())

  def test_they_are_written_once_in_a_run(self):
    """The run goes on without the weights it began from, and after older ones are removed."""
    first = self.start()
    self.save(first, 2)
    whole = spec_lib.nbytes([l.params for l in self.layers.values()])
    self.assertGreater(self.num_bytes("frozen"), 0.9 * whole)
    (once,) = (self.root / "frozen").iterdir()
    self.save(first, 4)
    self.assert_restores(4)
    again = self.start()
    self.save(again, 6)
    self.save(again, 8)
    self.save(self.start(), 10)
    self.assertCountEqual(
        {p.name.partition(".")[0] for p in self.root.iterdir()}, ["frozen", "6", "8", "10"]
    )
    self.assertEqual([*(self.root / "frozen").iterdir()], [once])
    self.assertLess(self.num_bytes("6", "8", "10"), whole)
    for step in (6, 8, 10):
      self.assert_restores(step)
    manifest = manifest_lib.read_manifest(manifest_lib.find_newest(self.root))
    stored = manifest.layers[_ADAPTED.layer_names[1]].arrays
    parts = {f"params/lora_{x}_{t}_proj/kernel" for x in "ab" for t in "qv"}
    self.assertEqual({name for name in stored if name.startswith("params/")}, parts)
    self.assertTrue(any(name.startswith("slots/") for name in stored))

  def test_what_somebody_removed_is_written_again(self):
    writer = self.start()
    self.save(writer, 2)
    self.save(writer, 4)
    shutil.rmtree(self.root)
    self.save(writer, 6)
    ((_, step, text),) = self.warnings
    self.assertEqual(step, 6)
    self.assertRegex(text, "Cannot save step 6 .* frozen weights are gone")
    self.assert_restores(6)
