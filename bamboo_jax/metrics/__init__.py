"""What a run tells: lines, bars, traces, plots and its summary."""
