"""Reports of runs as one HTML page: simulated, trained, or both.

  content      the contents of a report, as plain values
  run_course   contents of a training run, from its log
  run_times    events and steps of a run under a trace, with their times
  page         writes the page; its tables
  charts       draws its figures
  trace_report traces on the screen, as events and as figures
  comparison   how two runs ended, and a figure of their losses
  live         a page on a run while it trains, or afterwards
  status       what `bamboo status` shows of a cluster

Read `content` first.
"""
