"""What is said in votes, written to the workdir, and shown.

run_log      one member's part: what it says, and what it does at a commit
opening      what is said at the start
outputs      metrics, events, progress, trace and plots, by one member;
             `log_writers` has all that metrics and events go to
run_summary  `summary.json`
workdir      the files of a run
meter        dollars and kinds of node-time; `step_passes` splits a step
step_slots   planned and measured slots of a step
"""
