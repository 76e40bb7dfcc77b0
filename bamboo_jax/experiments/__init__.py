"""Simulated experiments, one module each, run by `bamboo simulate`.

`run` writes `summary.csv` and `report.html` into the workdir, and prints a table.

  compare       policies on one trace, and over many at several settings; splits the
                gap between them by cause
  beside        a recorded run beside its simulation
  sweep         runs jobs: on all cores, on a Dask cluster, in shards; keeps results; the
                inputs of a result
  output        estimates; `summary.csv`

Our simulator is `sim`, those of the papers are in `reproductions`, with the
experiments that use them. Read `compare` first.
"""
