"""The format of logs, in a process of its own: it sets that of the process."""

import re
import subprocess
import sys

from absl.testing import absltest

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

  def test_lines(self):
    said = subprocess.run(
        [sys.executable, "-c", _LOG, "--verbosity=0"],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
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


if __name__ == "__main__":
  absltest.main()
