"""The benchmark of redundancy; `launch.bench` runs it."""
