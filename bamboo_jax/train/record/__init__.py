"""Votes, files and messages of a run.

run_log      one member's votes, and its records at a commit
opening      messages at the start
outputs      metrics, events, progress, trace and plots, written by one member:
             what is in a line of the log;
             `log_writers` has all destinations of metrics and events
step_times   times of passes and nodes in a step, and what delays them
slow_nodes   names slow nodes after a step
run_summary  `summary.json`
workdir      the files of a run
mfu          model FLOPs utilisation of a step
meter        dollars and kinds of node time
step_traces  planned and measured steps, for pages, plots, Perfetto and XProf
"""
