"""What this project assumes of a GPU, as tests with the marker `gpu`.

They are skipped unless `launch/gpu_check` asks for them (`--gpu`, or `--smoke`
for small sizes on any device), because they take minutes, and the whole device.
Each runs its check, a function `check_...(settings) -> child.Found`, in a
process of its own with its own XLA flags; what it finds is shown at the end.
The other tests here try the same functions without a GPU. `docs/guides/gpu.md`
says how to read the results. Read `child` first.
"""
