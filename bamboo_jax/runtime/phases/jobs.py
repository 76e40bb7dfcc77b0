"""Runs what takes long, such as compiling, in as many threads as cores."""

from collections.abc import Callable, Sequence
import concurrent.futures
import os
from typing import Any


def run_all(jobs: Sequence[Callable[[], Any]]) -> None:
  """Runs `jobs`, in any order; raises the error of the first that fails."""
  pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
  try:
    waiting = [pool.submit(job) for job in jobs]
    for future in concurrent.futures.as_completed(waiting):
      future.result()
  finally:  # An interrupt does not wait for what has begun.
    pool.shutdown(wait=False, cancel_futures=True)
