"""Reports of runs as one HTML page: simulated, trained, or both.

  content      the contents of a report, as plain values
  run_course   contents of a training run, from its log
  run_times    events and steps of a run under a trace, with their times
  page         writes the page; its tables
  charts       draws its figures
  trace_report traces on the terminal, as events and as figures
  status       the output of `bamboo status`

Read `content` first.
"""
