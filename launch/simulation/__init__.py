"""What `launch.simulate` can run; one module for each experiment."""
