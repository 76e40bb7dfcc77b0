"""Records in buckets that are busy, slow, lose answers, or are no judge at all."""

import datetime
import os
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import records as records_lib
from tests import buckets
from tests.cluster import records_test

_PLACES = ({"testcase_name": scheme, "scheme": scheme} for scheme in buckets.OPEN)
# Requests to make a record, one after another; after these they succeed.
_FAULTS = (
    ("503",),
    ("503", "503", "503"),
    ("slow",),
    ("closed",),
    ("lost",),
    ("503_after",),
    ("lost", "closed", "503_after"),
    ("slow", "503", "lost"),
)
# Status and code of an answer, and what is said of it.
_REFUSALS = (
    (403, "AccessDenied", "its credentials do not permit this"),
    (400, "ExpiredToken", "its credentials have expired"),
    (403, "RequestTimeTooSkewed", "the clock of this machine is off"),
    (301, "PermanentRedirect", "it is in another region, which AWS_REGION must name"),
    (400, "AuthorizationHeaderMalformed", "it is in another region, which AWS_REGION must name"),
    (418, "Teapot", "no answer"),
)


@parameterized.named_parameters(*_PLACES)
class RecordsBucketTest(parameterized.TestCase):

  def open(self, scheme, name=""):
    """Starts the server; returns records in its bucket."""
    self.front, environ = buckets.OPEN[scheme](self.id().rpartition(".")[2].replace("_", "-"))
    self.addCleanup(self.front.close)
    self.enterContext(mock.patch.dict(os.environ, environ))
    self.url = f"{scheme}://{self.front.bucket}/a/run"
    return self.again()

  def again(self, key=b"key", secs=60):
    """Returns the records as another node has them; a busy machine needs its time."""
    timeout = datetime.timedelta(seconds=secs)
    with mock.patch.object(records_lib, "_TIMEOUT", timeout):
      with mock.patch.dict(records_lib._RETRIES, retry_timeout=timeout):
        return records_lib.Records(self.url, key)

  def test_what_records_do(self, scheme):
    self.open(scheme)
    records_test.check(self, self.again)

  def test_marks_of_several_pages(self, scheme):
    records = self.open(scheme)
    for number in range(buckets.PAGE + 5):
      records.mark(f"nodes/{number}", number)
    self.assertLen(records.marks("nodes"), buckets.PAGE + 5)

  def test_one_of_many_makers_wins_whatever_fails(self, scheme):
    self.open(scheme)
    faults = [f for some in _FAULTS for f in (*some, *[""] * 5)]
    self.front.fail(*faults)
    found = records_test.race(self.again, 12)
    self.assertGreater(self.front.counts["PUT"], len(faults))  # All of them have happened.
    self.assertEqual(found, [[self.again().find(f"views/{i}") for i in range(12)]] * 6)

  def test_a_fault_changes_nothing(self, scheme):
    records = self.open(scheme)
    for number, faults in enumerate(_FAULTS):
      with self.subTest(faults=faults):
        key = f"views/{number}"
        self.front.fail(*faults)
        self.assertEqual(records.make(key, "mine"), "mine")
        self.assertEqual(self.again().make(key, "other"), "mine")
        # Also if somebody else has made it.
        self.again().make(f"others/{number}", "other")
        self.front.fail(*faults)
        self.assertEqual(records.make(f"others/{number}", "mine"), "other")
        if len(faults) == 1:
          self.front.fail(*faults, method="GET")
          self.assertEqual(records.find(key), "mine")

  def test_who_got_no_answer_says_the_same_again(self, scheme):
    records = self.open(scheme)
    for number, fault in enumerate(("503", "closed", "lost")):
      key = f"views/{number}"
      with self.front.failing(fault):
        with self.assertRaisesRegex(OSError, "^[^\n]*$"):
          records.make(key, "mine")
        other = None
        if fault != "lost":
          self.assertIsNone(self.again().find(key))
          other = "other"
      if other:
        self.assertEqual(self.again().make(key, other), other)
      self.assertEqual(records.make(key, "mine"), other or "mine")

  def test_what_lands_late_replaces_nothing(self, scheme):
    """Its maker has given up long ago, and others have gone on."""
    records = self.open(scheme)
    self.front.fail(*["held"] * 9)
    with self.assertRaises(OSError):
      self.again(secs=0.5).make("views/1", "late")
    self.front.fail_no_more()
    self.assertEqual(self.again().make("views/1", "other"), "other")
    self.front.release()
    self.assertEqual(self.again().find("views/1"), "other")
    self.assertEqual(records.make("views/1", "late"), "other")

  def test_a_place_that_ignores_conditions(self, scheme):
    records = self.open(scheme)
    self.front.ignores_conditions = True
    with self.assertRaisesRegex(records_lib.LostError, f"{self.url}.* replaces what is there"):
      records.probe("n0")

  def test_a_bucket_that_refuses_to_write(self, scheme):
    records = self.open(scheme)
    self.again().make("views/1", "other")
    for * self.front.refusal, what in _REFUSALS:
      for call in (lambda: records.probe("n0"), lambda: records.make("views/2", 2)):
        with self.assertRaisesRegex(OSError, f"^{self.url}/records: {what}: [^\n]*$"):
          call()
    self.assertEqual(records.find("views/1"), "other")

  def test_no_credentials(self, scheme):
    error = OSError("Generic error: PUT http://169.254.169.254/latest\n\nDebug source:\n1")
    told = "no credentials were found: Generic error: PUT http://169.254.169.254/latest"
    self.assertEqual(records_lib.explain(error), told)

  def test_a_bucket_that_is_not_there(self, scheme):
    self.open(scheme)
    self.url = f"{scheme}://missing/run"
    records = self.again()
    for call in (lambda: records.probe("n0"), lambda: records.find("views/1")):
      with self.assertRaisesRegex(OSError, f"^{self.url}/records: there is no such bucket: .*$"):
        call()
