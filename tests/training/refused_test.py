"""Runs that are refused before anything is compiled or written, or that end before it."""

import os
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.net import identity
from bamboo_jax.plan import cost_model
from bamboo_jax.runtime import devices
from bamboo_jax.training import run
from bamboo_jax.training.setup import build, job as job_lib
from tests import folders, members, tables, tiny

# Changes of a config, and the error.
_MISTAKES = """
model__name=gtp2
  model 'gtp2'; did you mean 'gpt2'
optimizer__name=adamm
  did you mean 'adam'
pipeline__num_stages=5
  from 1 to 4 .* got 5
pipeline__num_shares=3
  num_microbatches=2 .* 3
plan__memory_limit_gib=1e-6
  MiB too much
plan__profile=/no/file
  /no/file
data__options__vocab_size=99
  vocab_size=99
data__name="s3://a/b.jsonl"
  config.data.name='s3://a/b.jsonl' is a URL, must be a path
data__name="no/12:30.jsonl"
  No file matches 'no/12:30.jsonl'
data__options__num_heldout=0
  no held-out samples to evaluate
"""
_SECRET = b"0123456789abcdef" * 2


class RefusedTest(folders.FolderCase):

  def train(self, name, **changes):
    run.train_and_evaluate(tiny.make_config(**changes), workdir=str(self.folder / name))

  @parameterized.parameters(*tables.read(_MISTAKES))
  def test_bad_config(self, words, message):
    changes = {"evaluate__every_steps": 2} | tables.parse_changes(words)
    with self.assertRaisesRegex((ValueError, OSError), message) as caught:
      self.train("a", **changes)
    self.assertNotIn("\n", str(caught.exception))
    self.assertEqual(os.listdir(self.folder), [])

  @parameterized.named_parameters(
      ("absent", None, "^config.data.name: No file matches '.*/text'"),
      ("short", b"few words", "too short: it has 10 tokens"),
  )
  def test_bad_text(self, content, message):
    path = self.folder / "text"
    if content is not None:
      path.write_bytes(content)
    changes = {"data__name": str(path), "model__options__vocab_size": 256}
    changes["data__options"] = {"heldout_fraction": 0.0, "cache_dir": f"{self.folder}/cache"}
    with self.assertRaisesRegex(base.DataError, message):
      self.train("a", model__options__sequence_length=16, **changes)

  @parameterized.named_parameters(("absent", ""), ("file", "file"), ("below_a_file", "file/a"))
  def test_bad_workdir(self, name):
    (self.folder / "file").write_text("mine")
    workdir = name and str(self.folder / name)
    with self.assertRaisesRegex((ValueError, OSError), "ot a directory"):
      run.train_and_evaluate(tiny.make_config(), workdir=workdir)
    self.assertEqual((self.folder / "file").read_text(), "mine")

  def test_every_node_has_a_device(self):
    """Also those that come later; as many as all that die share the devices."""
    faults = self.folder / "faults"
    faults.write_text("1,,,join\n2,,,all\n3,,,join\n")
    config = tiny.make_config(redundancy__spares=1)
    with (
        mock.patch.object(devices, "use_virtual_devices") as use,
        mock.patch.object(job_lib, "make_job", side_effect=RuntimeError) as make,
        self.assertRaises(RuntimeError),
    ):
      run.train_and_evaluate(config, workdir=str(self.folder / "a"), faults=str(faults))
    use.assert_called_once_with(
        2 + 1 + 2, per_node=1, distinct=False, apart=False, deterministic=True
    )
    self.assertContainsSubset(range(4 + 4), make.call_args.kwargs["devices"])

  def test_profile_of_another_model(self):
    other = tiny.make_config(model__options__width=32)
    profile = build.make_profile(other, build.make_task(other))
    path = self.folder / "profile.json"
    path.write_text(cost_model.to_json(profile))
    message = f"{path}: .* model.width: have 32, want 16"
    with self.assertRaisesRegex(ValueError, message):
      self.train("a", plan__profile=str(path))

  def test_agents_live_in_the_workdir(self):
    records = records_lib.Records(self.folder / "a", identity.find_entry_key(_SECRET))
    (self.folder / "a").mkdir()
    (self.folder / "a/secret").touch(mode=0o600)
    (self.folder / "a/secret").write_bytes(_SECRET)
    view = members.view(1, 0, 1)
    judge.make_view(records, views.EMPTY, view)
    message = "A run is under way in this workdir, of n0, n1; end it"
    with members.answering(records, "n1"), self.assertRaisesRegex(ValueError, message):
      self.train("a")
    self.assertFalse((self.folder / "a" / "metrics.jsonl").exists())

  def test_a_run_whose_workdir_others_take_over_writes_no_more(self):
    workdir, seen = self.folder / "a", []

    def take(step, metrics):
      del metrics
      if step == 1:
        key = identity.find_entry_key((workdir / "secret").read_bytes())
        records = records_lib.Records(workdir, key)
        view = judge.newest_view(records)
        begun = views.begin_run(view, "an agent begins")
        seen.extend([judge.is_alone(view), judge.make_view(records, view, begun) == begun])

    config = tiny.make_config(num_steps=100_000, checkpoint__every_steps=0)
    with self.assertRaisesRegex(base.FencedError, "now belongs to another run"):
      run.train_and_evaluate(config, workdir=str(workdir), callbacks=(take,))
    self.assertEqual(seen, [True, True])
    self.assertFalse((workdir / "summary.json").exists())
    self.assertEmpty([*(workdir / "checkpoints").glob("*")])
