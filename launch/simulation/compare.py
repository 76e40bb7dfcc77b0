"""All policies on one trace, at our costs."""

import pathlib

import ml_collections


def run(
    config: ml_collections.ConfigDict,
    *,
    workdir: pathlib.Path,
    trace: str | None,
) -> None:
  """Writes `summary.csv` and `report.html`."""
  raise NotImplementedError
