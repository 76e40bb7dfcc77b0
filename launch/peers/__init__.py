"""Programs of other systems that we measure ourselves against."""
