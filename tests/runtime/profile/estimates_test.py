"""Estimates are made once for all processes of a machine."""

import tempfile
from unittest import mock

from absl.testing import absltest

from bamboo_jax.runtime.executables import program_folder as folder_lib, program_store
from bamboo_jax.runtime.profile import estimates
from tests import profiles


class EstimatesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.made = 0
    before = program_store.use().folder
    self.addCleanup(setattr, program_store.use(), "folder", before)
    path = self.enter_context(tempfile.TemporaryDirectory())
    program_store.use().folder = folder_lib.ProgramFolder(path)
    self.addCleanup(estimates._of_process.clear)

  def get(self, subject, on_disk=True, of_new_process=True):
    if of_new_process:
      estimates._of_process.clear()
    return estimates.get(subject, self.make, on_disk=on_disk)

  def make(self):
    self.made += 1
    layers = [profiles.make_layer("only")]
    return profiles.make_profile(layers, dispatch_ms=self.made / 3)

  def test_made_once_for_all_processes(self):
    first = self.get("gpt2")
    self.assertEqual(self.get("gpt2"), first)
    self.assertEqual(self.made, 1)

  def test_another_subject_is_another_estimate(self):
    self.assertNotEqual(self.get("gpt2"), self.get("bert"))

  def test_of_a_model_of_yours_is_kept_in_the_process_alone(self):
    first = self.get("mine", on_disk=False)
    self.assertEqual(self.get("mine", False, of_new_process=False), first)
    self.assertNotEqual(self.get("mine", on_disk=False), first)

  def test_change_of_the_package_makes_a_new_one(self):
    first = self.get("gpt2")
    with mock.patch.object(estimates, "digest_package", lambda: "changed"):
      self.assertNotEqual(self.get("gpt2"), first)
