"""What is written of a run.

journal      lines of steps and events, by one member; the summary is made of them
charges      kinds of node time, for the account
deaths       the times of recoveries, and how a pause is explained
step_times   times of passes and nodes in a step, and what delays them
workdir      the files of a run
step_traces  planned and measured steps, for pages, plots, Perfetto and XProf
"""
