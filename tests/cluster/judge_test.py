"""Views, runs and questions in the records of a folder."""

import asyncio
import dataclasses
import math
import socket
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, records as records_lib, views
from tests import folders, members
from tests.explorer import loop as loop_lib


class JudgeTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.records = records_lib.Records(self.folder, b"key")
    self.slept_secs = 0.0
    self.on_sleep = lambda: None
    self.enterContext(mock.patch.object(asyncio, "run", self.run_in_virtual_time))

  def run_in_virtual_time(self, waits):
    clock = loop_lib.Clock()
    clock.now = self.slept_secs
    task = loop_lib.Process(clock).create_task(waits)

    def look():
      if clock.now > self.slept_secs:
        self.slept_secs = clock.now
        self.on_sleep()
      return task.done()

    clock.run(math.inf, until=look)
    return task.result()

  async def call(self, function, *args):
    return function(self.records, *args)

  def put(self, *made):
    for view in made:
      self.records.make(f"views/{view.number}", json_lib.to_plain(view))

  def test_the_first_view_of_a_number_counts(self):
    self.assertEqual(judge.newest_view(self.records), views.EMPTY)
    one, other = members.view(1, 0, 1), members.view(1, 2)
    self.assertEqual(judge.make_view(self.records, views.EMPTY, one), one)
    self.assertEqual(judge.make_view(self.records, views.EMPTY, other), one)
    self.assertEqual(judge.newest_view(self.records), one)
    two = members.view(2, 0)
    self.assertEqual(judge.make_view(self.records, one, two), two)
    self.assertEqual(judge.views_after(self.records, 0), [one, two])

  def test_nobody_goes_on_from_a_view_that_is_lost(self):
    for there in (None, members.view(1, 3)):
      if there:
        self.put(there)
      with self.assertRaisesRegex(records_lib.LostError, "have lost view 1"):
        judge.make_view(self.records, members.view(1, 0, 1), members.view(2, 0))
      self.assertIsNone(self.records.find("views/2"))

  def test_a_run_is_told_to_end(self):
    judge.stop(self.records, "bamboo cluster")
    self.assertEqual(judge.newest_view(self.records), views.EMPTY)  # Nobody is there.
    first = members.view(1, 0, 1, leaving=(1,))
    self.put(first, views.ask(first, "n9"))
    for _ in range(2):
      judge.stop(self.records, "bamboo cluster")
    told = judge.newest_view(self.records)
    reason = "bamboo cluster asks to save and end"
    self.assertEqual(told, dataclasses.replace(first, number=3, reason=reason, stops=True))
    smaller = views.next_view(told, lost={"life 1": "it died"}, candidates=[members.member(2)])
    self.assertEqual((smaller.numbers, smaller.stops), ({0}, True))  # Nobody joins any more.
    self.assertFalse(views.over(smaller).stops)  # Who begins again is told again.

  def test_who_may_write(self):
    first = members.view(1, 0, 1)
    with self.assertRaisesRegex(FileNotFoundError, "no record of view 1"):
      judge.check(self.records, first)
    asked = views.ask(first, "n9")
    answered = views.answer(asked, "n0")
    smaller = dataclasses.replace(members.view(4, 0), epoch=0)
    self.put(first, asked, answered, smaller)
    judge.check(self.records, first)
    self.put(views.over(smaller))
    with self.assertRaisesRegex(base.FencedError, "restarted in view 5 without this node"):
      judge.check(self.records, first)
    judge.check(self.records, views.over(smaller))
    self.put(views.begin_run(views.over(smaller), "another"))
    for view in (first, views.over(smaller)):
      with self.assertRaisesRegex(base.FencedError, "another run|without this node"):
        judge.check(self.records, view)

  @parameterized.parameters("answered", "in vain", "asked before", "left to another")
  def test_a_question(self, how):
    view = members.view(1, 0, 1)
    self.put(view)
    question = views.ask(view, "n9")
    if how == "asked before":
      self.put(question)
    if how == "left to another":  # It was not asked whether any is alive.
      self.put(question := views.ask(view, "n1", [members.member(0)]))
    if how == "answered":
      self.on_sleep = lambda: self.slept_secs and self.put(views.answer(question, "n0"))
    newest = asyncio.run(judge.ask(self.call, judge.newest_view(self.records), "n9", 7.0))
    self.assertEqual(self.slept_secs, 0.5 if how == "answered" else 7.0)
    self.assertEqual(newest.is_ask, how != "answered")
    self.assertEqual(newest.number, 2 if how in ("in vain", "asked before") else 3)
    self.assertEqual(newest.asked, ())

  # Which run begins in a folder.

  def run_of(self, number, *, machine=None):
    run = judge.describe_run("life 0", {"seed": 0})
    self.records.make(f"run/{number}", run | ({"machine": machine} if machine else {}))

  def begin(self, **given):
    return judge.begin_run(self.records, "bamboo cluster", 9.0, **given)

  def living(self):
    """Returns a member that accepts connections."""
    self.listener = socket.create_server(("127.0.0.1", 0))
    self.addCleanup(self.listener.close)
    port = self.listener.getsockname()[1]
    return dataclasses.replace(members.member(0), host="127.0.0.1", port=port)

  def gone(self):
    """Returns a member whose process has ended."""
    member = self.living()
    self.listener.close()
    return member

  def test_a_new_folder(self):
    self.assertEqual(self.begin(), views.EMPTY)
    self.run_of(0)  # Of a command that was killed before the first view.
    begun = self.begin()
    self.assertEqual((begun.number, begun.run, begun.members), (1, 1, ()))
    self.assertEqual(self.slept_secs, 0.0)

  def test_a_process_that_trains_alone(self):
    begun = self.begin(alone=(members.member(0),))
    self.assertEqual((begun.number, begun.run, begun.epoch), (1, 1, 1))
    self.assertEqual(begun, judge.newest_view(self.records))
    self.assertFalse(judge.is_alone(begun))

  @parameterized.parameters(None, "another")
  def test_a_run_without_members_is_over(self, machine):
    self.put(members.view(1, 0), views.over(members.view(1, 0)))
    self.run_of(0, machine=machine)
    self.records.mark("nodes/life 0", {})
    self.assertEqual(self.begin().run, 3)
    self.assertEqual(self.slept_secs, 0.0)
    self.assertEqual(self.records.marks("nodes"), {})

  @parameterized.named_parameters(
      ("its_process_is_gone", "gone", None, 0),
      ("its_process_accepts_connections", "living", None, 9),
      ("it_was_on_another_machine", "gone", "another", 9),
      ("it_may_be_behind_a_firewall", "elsewhere", None, 9),
  )
  def test_members_that_do_not_answer(self, how, machine, slept):
    member = self.living() if how == "living" else self.gone()
    if how == "elsewhere":
      member = dataclasses.replace(member, host="192.0.2.1")
    view = dataclasses.replace(members.view(1), members=(member,))
    self.put(view)
    self.run_of(0, machine=machine)
    begun = self.begin()
    self.assertEqual(self.slept_secs, slept)
    self.assertEqual((begun.number, begun.members), (3 if slept else 2, ()))
    self.assertEqual(begun.run, begun.number)

  def before_view_3(self, happens):
    """Something happens between the last look and the view that would begin a run."""
    make = self.records.make

    def make_late(key, *value):
      if key == "views/3":
        happens()
      return make(key, *value)

    self.enterContext(mock.patch.object(self.records, "make", make_late))

  @parameterized.parameters(False, True)
  def test_members_that_live_keep_their_folder(self, is_late):
    view = dataclasses.replace(members.view(1), members=(self.living(),))
    self.put(view)
    self.run_of(0)
    answer = views.answer(views.ask(view, "bamboo cluster"), "n0")
    other = records_lib.Records(self.folder, b"key")
    reply = lambda: other.make("views/3", json_lib.to_plain(answer))
    if is_late:
      self.before_view_3(reply)
    else:
      self.on_sleep = reply
    with self.assertRaisesRegex(
        ValueError, "A run is under way in this workdir, of n0; end it, or name"
    ):
      self.begin()
    self.assertEqual(judge.newest_view(self.records), answer)

  def test_of_two_at_once_one_begins(self):
    self.put(members.view(1, 0), views.over(members.view(1, 0)))
    self.run_of(0)
    other, begun = records_lib.Records(self.folder, b"key"), []
    self.before_view_3(lambda: begun.append(judge.begin_run(other, "other", 9.0)))
    with self.assertRaisesRegex(ValueError, "another command, just started"):
      judge.begin_run(self.records, "one", 9.0)
    self.assertEqual([judge.newest_view(self.records)], begun)

  def test_what_differs(self):
    there = {"seed": 1, "model": {"options": {"depth": 2}}, "none": {}}
    here = {"seed": 1, "model": {"options": {}}, "extra": "x"}
    self.assertEqual(judge.find_difference(there, there), "")
    self.assertEqual(judge.find_difference(there, here), 'extra is absent there and "x" here')
    del here["extra"]
    self.assertEqual(
        judge.find_difference(there, here), "model.options.depth is 2 there and absent here"
    )
