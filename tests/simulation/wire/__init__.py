"""One-line faults of the transport, and how many the explorer finds."""
