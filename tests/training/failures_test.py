"""Errors of the user's code and data end the run, not node after node."""

import os
import types

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import batches as batches_lib, samples
from bamboo_jax.training import failures
from tests import members

_PLACE = failures.ReadPlace(False, 1, 0)
_WRONG = {
    "key": KeyError("label"),
    "os": FileNotFoundError(2, "No such file", "/nowhere"),
    "data": base.DataError("a.bin: token 40 is 99."),
}


class Cohort:
  """A member of several, in which all say what this one says, or `others`."""

  def __init__(self, *, num_members=2, reason="", others=None):
    self.view = members.view(1, *range(num_members), reason=reason)
    self.hosted, self.others = frozenset({0}), others
    self.reports, self.num_retracted = [], 0

  def gather(self, key, value):
    del key
    said = {0: value}
    if len(self.view.members) > 1:
      said[1] = value if self.others is None else self.others
    return said

  def retract(self):
    self.num_retracted += 1

  def say(self, **changes):
    self.reports.append(changes)


def make_data(kind, cohort, *, shape=(3,), bad=5):
  """Returns data with an error at sample `bad`, four samples to a step."""

  def batch(indices, *, seed):
    del seed
    if bad in indices and kind in _WRONG:
      raise _WRONG[kind]
    width = (7,) if bad in indices else shape
    return {"inputs": np.zeros((len(indices), *width), np.int32)}

  heldout = lambda indices: {"inputs": batch(indices, seed=0)["inputs"] + 7}
  source = samples.Source({}, 8, batch, heldout)
  batches = batches_lib.Batches(source, 0, num_microbatches=2, microbatch_size=2)
  like = {"inputs": jax.ShapeDtypeStruct((2, *shape), np.int32)}
  task = types.SimpleNamespace(batches=batches, whole=types.SimpleNamespace(batch=like))
  return failures.SafeData(task, cohort, failures.Failures())


class SafeDataTest(parameterized.TestCase):

  @parameterized.parameters(
      ("key", r"^Cannot read sample 5: .*failures_test.py:\d+: KeyError: 'label'"),
      ("data", r"^Cannot read sample 5: .*: a.bin: token 40 is 99.$"),
      (
          "shape",
          r"^Cannot read samples 4 to 5: array 'inputs' must be int32\[2, 3\] for 2 "
          r"samples, as in the first step, got int32\[2, 7\].$",
      ),
  )
  def test_an_error_is_kept_until_the_vote(self, kind, text):
    cohort = Cohort()
    data = make_data(kind, cohort)
    data.microbatch(0, 1)
    self.assertEqual(data.failures.first, failures.Failure())
    self.assertEqual(cohort.num_retracted, 0)
    for num in (1, 2):  # The first one counts.
      found = data.microbatch(1, 0, ("inputs",))
      self.assertEqual(cohort.num_retracted, num)
    np.testing.assert_array_equal(found["inputs"], np.ones((2, 3), np.int32))
    self.assertRegex(data.failures.first.text, text)
    self.assertEqual(data.failures.first.place, (False, 1, 0))
    data.microbatch(1, 0, is_heldout=True)
    self.assertEqual(cohort.num_retracted, 2)
    self.assertEqual(data.failures.first.place, (False, 1, 0))

  def test_held_out_samples(self):
    data = make_data("key", Cohort())
    for is_heldout, value in ((False, 0), (True, 7)):
      found = data.microbatch(0, 0, is_heldout=is_heldout)["inputs"]
      np.testing.assert_array_equal(found, np.full((2, 3), value))
    data.microbatch(1, 0, is_heldout=True)
    self.assertStartsWith(data.failures.first.text, "Cannot read held-out sample 5: ")
    self.assertEqual(data.failures.first.place, (True, 1, 0))

  @parameterized.parameters(
      ({}, True),
      ({"num_members": 1}, False),
      ({"reason": "n7 left: its worker ended with exit status 3"}, False),  # Just died of it.
  )
  def test_a_disk_that_fails(self, facts, dies):
    data = make_data("os", Cohort(**facts))
    if dies:
      with self.assertRaisesRegex(base.NodeFailedError, "/nowhere: No such"):
        data.microbatch(1, 0)
    else:
      data.microbatch(1, 0)
    self.assertTrue(data.failures.first.is_local)


class DecideTest(parameterized.TestCase):
  """Who ends: the run, this member that has failed, or the other that has."""

  @parameterized.parameters(
      # This member has failed; can the other go on?
      (KeyError("x"), _PLACE, 5, True, False, None),
      (KeyError("x"), _PLACE, 5, True, True, base.NodeFailedError),
      # The other has failed; can this one read the microbatch?
      (KeyError("x"), _PLACE, 5, False, None, None),
      (KeyError("x"), _PLACE, -1, False, None, base.ViewChangedError),
      # In code, not in data.
      (KeyError("x"), None, 5, False, None, None),
      (OSError("full"), None, 5, False, None, base.ViewChangedError),
  )
  def test_who_ends(self, error, place, bad, is_own, others, ends):
    data = make_data("key", Cohort(others=others), bad=bad)
    if is_own:
      data.microbatch(1, 0)
    said = failures.Failures()
    said.add(error, "why", place=place)
    if ends is None:
      self.assertEqual(failures.decide([said.first], data, steps=1).text, "why")
    else:
      with self.assertRaises(ends):
        failures.decide([said.first], data, steps=1)

  def test_the_end_of_a_run_is_told(self):
    cohort = Cohort()
    with self.assertRaisesRegex(base.RunFailedError, "^why$"):
      failures.end_run(cohort, "why", None)
    self.assertEqual(cohort.reports, [{"failed": "why"}])


class IsUsersTest(parameterized.TestCase):

  def test_by_the_lines_that_it_passed(self):
    def fail(error):
      raise error

    for error, want in (
        (KeyError("x"), True),
        (OSError("x"), False),
        (base.ViewChangedError("x"), False),
    ):
      try:
        fail(error)
      except type(error) as raised:
        self.assertEqual(failures.is_users(raised), want, msg=repr(error))
    try:
      os.path.join(1)  # Python's own code.
    except TypeError as raised:
      raised.__traceback__ = raised.__traceback__.tb_next
      self.assertFalse(failures.is_users(raised))
