"""Peaks of GPUs by the name that JAX has for them, for MFU."""

# Dense bfloat16 products with float32 sums, in TFLOP/s, from NVIDIA's data
# sheets (not the sparse figure, twice that). The first match counts.
_PEAK_TFLOPS = (
    ("B200", 2250.0),
    ("GH200", 989.5),
    ("H200 NVL", 835.5),
    ("H200", 989.5),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.5),
    ("H100", 989.5),
    ("A100", 312.0),
    ("A30", 165.0),
    ("A40", 149.7),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("RTX 4090", 165.2),
)


def find_peak_tflops(device_kind: str, *, dtype: str) -> float | None:
  """Returns the peak of a device for products, or None if it is not known.

  `device_kind` is JAX's, such as "NVIDIA H100 80GB HBM3"; of factors only
  "bfloat16" is known.
  """
  if dtype != "bfloat16":
    return None
  words = f" {device_kind} ".replace("-", " ")
  for name, tflops in _PEAK_TFLOPS:
    if f" {name} " in words:
      return tflops
  return None
