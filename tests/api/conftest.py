"""Runs of all sizes in one process, which later files of tests may share."""

from tests.training.conftest import have_devices  # noqa: F401
