"""Deaths at every point of real steps; `launch.sweep_faults` runs them."""
