"""Runs of all sizes in one process."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def have_devices():
  jax.devices()  # Now there are 8, however few a run asks for.
