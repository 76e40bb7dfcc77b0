"""A process that trains alone, and others that want its folder."""

import time
from unittest import mock

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import holding, judge, records as records_lib, views
from tests import folders

_DEADLINE_SECS = 120


class HoldingTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.object(holding, "_LOOK_SECS", 0.02))
    self.records = records_lib.Records(self.folder, b"key")

  def hold(self):
    return holding.hold(self.records, patience_secs=60.0)

  def newest(self):
    return judge.newest_view(self.records)

  def wait_for(self, condition):
    end_secs = time.monotonic() + _DEADLINE_SECS
    while not condition():
      self.assertLess(time.monotonic(), end_secs)
      time.sleep(0.005)

  def ask(self, name="n0"):
    view = self.newest()
    return judge.make_view(self.records, view, views.ask(view, name))

  def test_it_is_there_until_it_ends(self):
    with self.hold() as holder:
      view = self.newest()
      self.assertTrue(judge.is_alone(view))
      run = self.records.find(f"run/{view.run}")
      self.assertEqual(run["machine"], judge.find_machine())  # Nobody waits once it is killed.
      holder.check()
      self.ask()
      self.wait_for(lambda: self.newest().text == "bamboo train is alive")
      self.ask("n1")  # And each time.
      self.wait_for(lambda: self.newest().text == "bamboo train is alive")
      holder.check()
      self.assertFalse(holder.is_taken)
    self.assertEqual(self.newest().members, ())
    self.assertEqual(self.newest().run, view.run)

  def test_it_is_told_that_others_have_taken_the_folder(self):
    with self.hold() as holder:
      with mock.patch.object(views, "answer", side_effect=OSError("away")):
        asked = self.ask()
        begun = views.begin_run(asked, "n0 begins")
        judge.make_view(self.records, asked, begun)
      self.wait_for(lambda: holder.is_taken)
      with self.assertRaisesRegex(base.FencedError, "belongs to another run"):
        holder.check()
    self.assertEqual(self.newest(), begun)

  def test_a_folder_that_is_away_for_a_moment(self):
    with self.hold() as holder:
      away = self.folder.rename(f"{self.folder}_away")
      back = lambda _: away.exists() and away.rename(self.folder)
      with mock.patch.object(time, "sleep", back):
        holder.check()
    self.assertEqual(json_lib.to_plain(self.newest())["members"], [])
