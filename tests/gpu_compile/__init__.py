"""Programs compiled for GPUs, on a machine without one; and what reads them."""
