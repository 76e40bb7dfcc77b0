"""Reports of runs as one HTML page: simulated, trained, or both.

  content      what a report shows, as plain values
  run_course   that of a run that trained, from its log
  run_times    what happened to a run under a trace, and when
  page         writes the page; its tables
  charts       draws its figures
  trace_report traces on the screen, as events and as figures
  story        two runs step by step, and what deaths have cost
  comparison   how two runs ended, and a figure of their losses
  status       what `bamboo status` shows of a cluster

Read `content` first.
"""
