"""Simulated experiments, one module each, as `bamboo simulate` runs them.

`run` takes a config of `configs/sim`, writes `summary.csv` and often
`report.html` into the workdir, and prints a table.

  compare       all policies on one trace, and over many at several settings;
                compare_report draws it, gap splits what policies are behind
  bamboo_bert   Bamboo's table of BERT, by the rules of its artifact
  oobleck       Oobleck's evaluation, by its rules and by sound ones
  validation    a run beside its simulation, for `bamboo validate`
  run_policy    a run's own rules, which that simulation plays
  output        runs on all cores, estimates; tables: CSV, Markdown, ratios to
                published figures
  provenance    what a result was made from

Our simulator is `sim`, those of the papers are in `published`. Read `compare`
first.
"""
