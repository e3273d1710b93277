"""One kind of kernels for every machine's arithmetic: import this before NumPy.

The corpus holds results to the last digit, but OpenBLAS has other kernels for each processor, and NumPy has exp, log
and power of its own where the processor has AVX-512.
"""

from __future__ import annotations

import os
import platform

if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR")
