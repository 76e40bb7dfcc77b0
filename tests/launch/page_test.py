"""A node is killed with a button of the page, in a browser; takes a minute.

Skipped without Chromium, which `pip` does not install.
"""

import importlib.util
import json
import os
import re
import shutil
import urllib.request

from absl.testing import absltest

from tests.launch import commands

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_BROWSER = next(filter(None, map(shutil.which, _BROWSERS)), None)
_WAIT_MS = 60_000


@commands.needs_etcd
class PageTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 120,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "evaluate.every_steps": 0,
      "cost.instance": "p3.2xlarge",
  }

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

  @absltest.skipUnless(_BROWSER, "Chromium is not installed")
  @absltest.skipUnless(
      importlib.util.find_spec("playwright"), "Playwright is not installed"
  )
  def test_kill_by_button(self):
    from playwright import sync_api

    whole = self.start("train", workdir="whole")
    run, address = self.start_with_page()
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
      page.click("#node-n1 button:has-text('Kill')")
      page.wait_for_selector("#recoveries td:has-text('n1')")
      row = page.inner_text("#recoveries tr:nth-child(2)")
      page.wait_for_selector("#node-n1", state="detached")
      self.assertIn("if it dies: shadow", page.inner_text("#nodes"))
      self.assertIn("$ per million tokens", page.inner_text("#tiles"))
      width = page.evaluate("document.documentElement.scrollWidth")
      self.assertLessEqual(width, 390)  # Nothing is cut off on a phone.
      self.assertEqual(errors, [])
      browser.close()
    self.finish(run, whole)
    found, want = self.summary("run"), self.summary("whole")
    self.assertEqual(found["state_sha256"], want["state_sha256"])
    (recovery,) = found["recoveries"]
    self.assertEqual(recovery["names"], ["n1"])
    self.assertIsNotNone(recovery["detect_secs"])  # By the launcher's clock.
    self.assertIn(recovery["rung"], row)

  def test_status_prints_what_the_page_shows(self):
    run, address = self.start_with_page("--config.num_steps=100000")
    base, token = address.split("#token=")
    workdir = f"--workdir={self.folder / 'run'}"
    told = commands.run("-m", "launch.status", workdir, "--json")
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    request = urllib.request.Request(base + "value", headers={"X-Token": token})
    with urllib.request.urlopen(request, timeout=20) as answer:
      shown = json.load(answer)
    printed = json.loads(told.stdout)
    self.assertEqual(printed.keys(), shown.keys())
    names = [node["name"] for node in printed["nodes"]]
    self.assertEqual(names, ["n0", "n1", "n2", "n3", "n4"])
    self.assertEqual(
        (printed["actions"], "kill" in shown["actions"]), ([], True)
    )
    port = re.search(r":(\d+)/", base)[1]
    told = commands.run("-m", "launch.status", workdir, f"--page_port={port}")
    self.assertEqual(told.returncode, 2)
    self.assertIn(f"port {port}: Address already in use", told.stderr)
    run.kill()  # All processes end with it.


if __name__ == "__main__":
  absltest.main()
