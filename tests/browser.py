"""Pages in Chromium, where one is installed."""

import contextlib
import importlib.util
import os
import shutil
import unittest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATH = next(filter(None, map(shutil.which, _NAMES)), None)
IS_HERE = bool(_PATH and importlib.util.find_spec("playwright"))
needs_browser = unittest.skipUnless(IS_HERE, "needs Chromium and playwright")


@contextlib.contextmanager
def started():
  """Yields a browser of playwright."""
  from playwright import sync_api

  with sync_api.sync_playwright() as playwright:
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    browser = playwright.chromium.launch(executable_path=_PATH, args=options)
    yield browser
    browser.close()


def open_page(browser, address, *, width=1280, scheme="light"):
  """Returns a page, and the list of its errors, which may grow; `scheme` is "light" or "dark"."""
  page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
  errors = []
  page.on("pageerror", lambda error: errors.append(str(error)))
  page.on("console", lambda m: m.type == "error" and errors.append(m.text))
  page.goto(address)
  return page, errors
