"""The benchmark of executors; `launch.bench` runs it."""
