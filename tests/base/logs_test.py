"""The format of logs, in a process of its own: it sets that of the process."""

import re
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from bamboo_jax import base
from bamboo_jax.base import logs as logs_lib

_LOG = """
import logging as std_logging
from absl import app, logging
from bamboo_jax.base import logs

def main(argv):
  logs.use("n1")
  logging.info("first")
  logs.note_step(38)
  logging.warning("second %d", 2)
  std_logging.getLogger("library").info("chatter")
  std_logging.getLogger("library").warning("third")
  try:
    raise ValueError("cause")
  except ValueError:
    logging.exception("fourth")

app.run(main)
"""
_HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "


class LogsTest(absltest.TestCase):

  def test_names_of_nodes(self):
    self.enterContext(mock.patch.dict(logs_lib._names, clear=True))
    logs_lib.note_names({3: "n2"})
    self.assertEqual((logs_lib.name_of(3), logs_lib.name_of(4)), ("n2", "node 4"))
    self.assertEqual(str(base.PeerRemovedError(3, "it died")), "n2 was removed: it died.")

  def test_lines(self):
    said = subprocess.run(
        [sys.executable, "-c", _LOG, "--verbosity=0"], stderr=subprocess.PIPE, text=True, check=True
    ).stderr.splitlines()
    heads = [re.match(_HEAD, line) for line in said]
    bodies = [
        re.sub(":\\d+ ", " ", line[head.end() :])
        for line, head in zip(said, heads, strict=True)
        if head
    ]
    self.assertEqual(
        bodies,
        [
            "info n1 step=0 <string> first",
            "warning n1 step=38 <string> second 2",
            "warning n1 step=38 <string> third",
            "error n1 step=38 <string> fourth",
        ],
    )
    self.assertEqual(said[-1], "ValueError: cause")

  def test_strangers_fill_no_disk(self):
    now_secs = 0.0
    warnings = logs_lib.Sparing(num_first=2, every_secs=10.0, clock=lambda: now_secs)
    with self.assertLogs("absl", "WARNING") as logs:
      for now_secs in (0.0, 1.0, 2.0, 9.0, 10.9, 11.0, 11.1, 30.0):
        warnings.warn("at %d", now_secs)
    self.assertEqual(
        [record.getMessage() for record in logs.records],
        ["at 0", "at 1", "at 11 (3 such lines before)", "at 30 (1 such lines before)"],
    )
    self.assertEqual(logs.records[0].filename, "logs_test.py")
