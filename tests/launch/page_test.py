"""A run is watched, and its nodes are hurt by the buttons of the page.

One cluster for all; takes most of a minute. Without Chromium, which `pip` does
not install, nothing is pressed.
"""

import contextlib
import itertools
import json
import re
import signal
import threading
import time
import urllib.request

from absl.testing import absltest

from tests import browser
from tests.launch import commands

_WAIT_MS = 240_000
_ALL, _LEFT = ["n0", "n1", "n2", "n3", "n4"], ["n0", "n4"]


@commands.needs_etcd
class PageTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 150,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "redundancy.spares": 1,
      "evaluate.every_steps": 0,
      "cost.instance": "p3.2xlarge",
  }
  HELD_FROM = 2
  HELD_SECS = 3.0  # So it goes on for 150 s, and longer, if it is not released.

  def start_with_page(self):
    """Returns a cluster that trains, and the address of its page."""
    run = self.start("cluster", "--page", "--zones=a,b")
    address = ""
    for line in run.stdout:
      if line.startswith("page: "):
        address = line.removeprefix("page: ").strip()
      if line.startswith("step=1 "):
        break
    self.assertRegex(address, r"^http://127.0.0.1:\d+/#token=[0-9a-f]{32}$")
    return run, address

  @contextlib.contextmanager
  def open_page(self, address):
    """Yields the page in a browser; there must be no errors on it."""
    with browser.started() as chrome:
      page, errors = browser.open_page(chrome, address, width=400)
      page.set_default_timeout(_WAIT_MS)
      page.on("dialog", lambda dialog: dialog.accept())
      yield page
      self.assertEqual(errors, [])

  def test_a_run(self):
    whole = self.start("train", workdir="whole")
    run, address = self.start_with_page()
    said = []
    reader = threading.Thread(target=lambda: said.extend(run.stdout))
    reader.start()  # The launcher would block if nobody read its lines.
    if browser.IS_HERE:
      self.press_buttons(address)
    workdir = f"--workdir={self.folder / 'run'}"
    names = self.check_status(workdir, address)
    self.assertEqual(names, _LEFT if browser.IS_HERE else _ALL)
    self.check_watch(workdir)
    self.check_debug(workdir, names)
    self.release()
    reader.join()
    self.assertEqual(run.wait(), 0, msg=said)
    self.finish(whole)
    found, want = self.summary("run"), self.summary("whole")
    self.assertEqual(found["state_sha256"], want["state_sha256"])
    if browser.IS_HERE:
      self.assertEqual(found["recoveries"][0]["names"], ["n1"])
      # By the launcher's clock.
      self.assertIsNotNone(found["recoveries"][0]["detect_secs"])
      self.assertTrue(any(line.startswith("slow step=") for line in said))
      self.assertIn("n5 starts, to join\n", said)

  def press_buttons(self, address):
    """Each fault is awaited by what the page shows of it.

    Nodes are in zones a and b by turns, so the node that joins is in b.
    """
    with self.open_page(address) as page:
      gone = lambda node: page.wait_for_selector(f"{node}.gone")
      press = lambda where, text: page.click(f"{where} button:text-is('{text}')")
      self.wait_steps(address, 18)  # A slow node is known by its past.
      press("#node-n1", "Slow")
      page.wait_for_selector("#events td:has-text('n1 on')")
      press("#nodes", "Join")
      page.wait_for_selector("#node-n5.spare")
      press("#node-n1", "Kill")
      page.wait_for_selector("#recoveries td:has-text('n1')")
      row = page.inner_text("#recoveries tr")
      self.assertRegex(row, "shadow|reroute")
      self.assertRegex(page.inner_text("#news"), r"^n1 died; ")
      gone("#node-n1")
      self.assertIn("if it dies: its shadow takes over", page.inner_text("#nodes"))
      self.assertIn("$ per million tokens", page.inner_text("#tiles"))
      width = page.evaluate("document.documentElement.scrollWidth")
      self.assertLessEqual(width, 400)  # Nothing is cut off on a phone.
      press("#node-n3", "Notice")
      gone("#node-n3")
      press("#node-n2", "Stop")
      gone("#node-n2")
      page.wait_for_selector("#recoveries td:has-text('n2 (')")
      press("#nodes", "Kill zone b")
      gone("#node-n5")

  def wait_steps(self, address, count):
    """Waits for `count` more steps; returns what the page shows then."""
    first = self.read_value(address)["head"]["step"]
    deadline = time.monotonic() + _WAIT_MS / 1e3
    while (value := self.read_value(address))["head"]["step"] < first + count:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.2)  # Between two looks.
    return value

  def read_value(self, address):
    """Returns the value that the page shows."""
    base, token = address.split("#token=")
    request = urllib.request.Request(base + "value", headers={"X-Token": token})
    with urllib.request.urlopen(request, timeout=20) as answer:
      return json.load(answer)

  def check_status(self, workdir, address):
    """It prints what the page shows; returns the names of nodes."""
    told = commands.fork("-m", "launch.status", workdir, "--json")
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    shown = self.read_value(address)
    printed = json.loads(told.stdout)
    self.assertEqual(printed.keys(), shown.keys())
    names = [node["name"] for node in printed["nodes"] if node["role"] != "gone"]
    self.assertEqual((printed["actions"], "kill" in shown["actions"]), ([], True))
    port = re.search(r":(\d+)/", address)[1]
    told = commands.fork("-m", "launch.status", workdir, f"--page_port={port}")
    self.assertEqual(told.returncode, 2)
    self.assertIn(f"port {port}: Address already in use", told.stderr)
    return names

  def check_watch(self, workdir):
    """The status is shown again and again, with steps that go on."""
    watch = self.start_module("launch.status", workdir, "--watch")
    steps = []
    for line in itertools.islice(watch.stdout, 1000):
      if found := re.match(r"run=run view=\d+ step=(\d+) ", line):
        steps.append(int(found[1]))
      if steps and steps[-1] > steps[0]:
        break
    self.assertGreater(steps[-1], steps[0])
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=60)
    self.assertEqual(watch.returncode, 128 + signal.SIGINT)

  def check_debug(self, workdir, names):
    """All workers answer with their stacks, and go on."""
    told = commands.fork("-m", "launch.debug", workdir)
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    stacks, _, waits = told.stdout.partition("\n==\n")
    for name in names:
      self.assertRegex(stacks, rf"(?m)^== {name}, process \d+$")
      self.assertRegex(waits, rf"(?m)^{name} waits for (no node|n\d)")
    self.assertIn('train/worker.py", line', stacks)


if __name__ == "__main__":
  absltest.main()
