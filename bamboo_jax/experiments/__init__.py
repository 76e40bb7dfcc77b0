"""Simulated experiments, one module each, run by `bamboo simulate`.

`run` takes a config of `configs/sim`, writes `summary.csv` and often
`report.html` into the workdir, and prints a table.

  compare       all policies on one trace, and over many at several settings;
                compare_report reports it, gap splits the gap between policies,
                unused finds options without an effect
  validation    a run beside its simulation, for `bamboo validate`
  run_policy    a run's own rules, as the policy of that simulation
  sweep         runs jobs: on all cores, on a Dask cluster, in shards; kept
                has results of jobs for a sweep that goes on
  output        estimates; tables: CSV, Markdown
  provenance    the inputs of a result

Our simulator is `sim`, those of the papers are in `reproductions`, with the
experiments that use them. Read `compare` first.
"""
