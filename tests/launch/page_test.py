"""Faults by the buttons of the page, in a browser; takes two minutes.

Skipped without Chromium, which `pip` does not install.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import threading
import time
import urllib.request

from absl.testing import absltest

from tests.launch import commands

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_BROWSER = next(filter(None, map(shutil.which, _BROWSERS)), None)
_WAIT_MS = 240_000
_needs_browser = absltest.skipUnless(
    _BROWSER and importlib.util.find_spec("playwright"),
    "Chromium or Playwright is not installed",
)


@commands.needs_etcd
class PageTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 60,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "evaluate.every_steps": 0,
      "cost.instance": "p3.2xlarge",
  }
  HELD_FROM = 2

  def start_with_page(self, *more):
    """Returns a cluster that trains, and the address of its page."""
    spares = "--config.redundancy.spares=1"
    run = self.start("cluster", "--page", "--zones=a,b", spares, *more)
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
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
      options = ["--no-sandbox"] if os.getuid() == 0 else []
      browser = playwright.chromium.launch(
          executable_path=_BROWSER, args=options
      )
      page = browser.new_page(viewport={"width": 390, "height": 800})
      errors = []
      page.on("pageerror", lambda error: errors.append(error))
      page.on("console", lambda m: m.type == "error" and errors.append(m.text))
      page.set_default_timeout(_WAIT_MS)
      page.goto(address)
      yield page
      self.assertEqual(errors, [])
      browser.close()

  @_needs_browser
  def test_kill_by_button(self):
    whole = self.start("train", workdir="whole")
    run, address = self.start_with_page()
    with self.open_page(address) as page:
      page.click("#node-n1 button:has-text('Kill')")
      page.wait_for_selector("#recoveries td:has-text('n1')")
      row = page.inner_text("#recoveries tr:nth-child(2)")
      page.wait_for_selector("#node-n1", state="detached")
      self.assertIn("if it dies: shadow", page.inner_text("#nodes"))
      self.assertIn("$ per million tokens", page.inner_text("#tiles"))
      width = page.evaluate("document.documentElement.scrollWidth")
      self.assertLessEqual(width, 390)  # Nothing is cut off on a phone.
      self.release()
    self.finish(run, whole)
    found, want = self.summary("run"), self.summary("whole")
    self.assertEqual(found["state_sha256"], want["state_sha256"])
    (recovery,) = found["recoveries"]
    self.assertEqual(recovery["names"], ["n1"])
    self.assertIsNotNone(recovery["detect_secs"])  # By the launcher's clock.
    self.assertIn(recovery["rung"], row)

  # Nodes are in zones a and b by turns, so the node that joins is in b. Each
  # fault is awaited by what the page shows of it.
  @_needs_browser
  def test_other_buttons(self):
    run, address = self.start_with_page("--config.num_steps=1000000")
    said = []
    reader = threading.Thread(target=lambda: said.extend(run.stdout))
    reader.start()  # The launcher would block if nobody read its lines.
    with self.open_page(address) as page:
      gone = lambda node: page.wait_for_selector(node, state="detached")
      press = lambda where, text: page.click(
          f"{where} button:text-is('{text}')"
      )
      press("#nodes", "Join")
      page.wait_for_selector("#node-n5.spare")
      press("#node-n3", "Notice")
      gone("#node-n3")
      press("#node-n1", "Stop")
      gone("#node-n1")
      press("#nodes", "Kill zone b")
      gone("#node-n5")
      self.release()
      value = self.wait_steps(address, 15)  # A slow node is known by its past.
      names = [node["name"] for node in value["nodes"]]
      self.assertEqual(names, ["n0", "n2", "n4"])
      roles = {node["role"]: node["name"] for node in value["nodes"]}
      press(f"#node-{roles['owner']}", "Slow")
      page.wait_for_selector(f"#events td:has-text('{roles['owner']} on')")
    run.kill()  # All processes end with it.
    reader.join()
    self.assertTrue(any(line.startswith("slow step=") for line in said))
    self.assertIn("n5 starts, to join\n", said)

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

  def test_status_prints_what_the_page_shows(self):
    run, address = self.start_with_page("--config.num_steps=100000")
    workdir = f"--workdir={self.folder / 'run'}"
    told = commands.run("-m", "launch.status", workdir, "--json")
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    shown = self.read_value(address)
    printed = json.loads(told.stdout)
    self.assertEqual(printed.keys(), shown.keys())
    names = [node["name"] for node in printed["nodes"]]
    self.assertEqual(names, ["n0", "n1", "n2", "n3", "n4"])
    self.assertEqual(
        (printed["actions"], "kill" in shown["actions"]), ([], True)
    )
    port = re.search(r":(\d+)/", address)[1]
    told = commands.run("-m", "launch.status", workdir, f"--page_port={port}")
    self.assertEqual(told.returncode, 2)
    self.assertIn(f"port {port}: Address already in use", told.stderr)
    self.check_watch(workdir)
    self.check_debug(workdir)
    run.kill()  # All processes end with it.

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

  def check_debug(self, workdir):
    """All workers answer with their stacks, and go on."""
    told = commands.run("-m", "launch.debug", workdir)
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    stacks, _, waits = told.stdout.partition("\n==\n")
    for name in ("n0", "n1", "n2", "n3", "n4"):
      self.assertRegex(stacks, rf"(?m)^== {name}, process \d+$")
      self.assertRegex(waits, rf"(?m)^{name} waits for (no node|n\d)")
    self.assertIn('train/step.py", line', stacks)


if __name__ == "__main__":
  absltest.main()
