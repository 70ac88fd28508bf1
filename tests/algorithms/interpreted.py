# SPDX-License-Identifier: MIT
"""Runs the Triton kernels of the codec on the CPU, in Triton's interpreter, and prints a line of JSON: for each of
the codec_checks.cases() that are named the results in which they differ from eager torch.

The interpreter is chosen when Triton is first imported, so it has a process of its own, with TRITON_INTERPRET=1. Its
own conversion to bfloat16 does not round to the nearest, and takes subnormal numbers for others: bfloat16 is left out.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch

from bagua_net.algorithms._codec import kernels
from tests.algorithms import codec_checks
from tests.algorithms.codec_checks import different, inputs

if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of divisions by zero whose results are not used
    results = {
        name: different(kernels, form, inputs(kind, count), offset=offset, dtypes=(torch.float32, torch.float16))
        for name, (form, kind, count, offset) in codec_checks.cases().items()
        if name in sys.argv[1:]
    }
    print(json.dumps(results))
