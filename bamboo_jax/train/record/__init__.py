"""What is said in votes, written to the workdir, and shown.

run_log      one member's part: what it says, and what it does at a commit
outputs      metrics, events, progress, trace and plots, by one member
run_summary  `summary.json`
workdir      the files of a run
meter        dollars and kinds of node-time; `step_passes` splits a step
plan_lines   the plan in words, at the start
step_slots   planned and measured slots of a step
"""
