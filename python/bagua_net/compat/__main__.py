# SPDX-License-Identifier: MIT
"""Runs a script that imports bagua: ``torchrun --nproc-per-node 8 -m bagua_net.compat train.py --epochs 14``.

Workers that the script starts by multiprocessing, also by spawn or forkserver, can import it as well.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from ._install import install_for_workers


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("bagua_net.compat: which script? python -m bagua_net.compat train.py ARGUMENTS")
    script = Path(sys.argv[1])
    if not script.is_file():
        sys.exit(f"bagua_net.compat: there is no script {script}")
    install_for_workers()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(script.resolve().parent)  # as for `python train.py`
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
