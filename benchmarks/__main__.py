# SPDX-License-Identifier: MIT
"""All measurements: ``python3 -m benchmarks NAME [--quick]``, from the repository's root. README.md tells more."""

from __future__ import annotations

import importlib
import sys

#: Name → the module whose ``main`` takes the words after the name, and what is measured.
MEASUREMENTS = {
    "transport": ("run.transport", "the transport against NCCL's own, and NCCL's collectives over both (S1 to S12)"),
    "torch-allreduce": ("run.torch_allreduce", "all_reduce of torch.distributed over many networks, against gloo"),
    "torch-collectives": ("collectives.run", "every operation of torch.distributed, against gloo"),
    "algorithms": ("steps.run", "training steps with and without the algorithms"),
    "codecs": ("codecs.run", "the compressed allreduce, and the codecs alone"),
    "convergence": ("accuracy.run", "accuracy with the algorithms and with exact averages"),
    "time-to-accuracy": ("curves.run", "time until an accuracy is reached"),
    "rings": ("rings.run", "rings of hosts: how soon all edges run at full rate"),
    "repairs": ("repairs.run", "streams that are reset: how soon their connection has its full rate again"),
    "strangers": ("strangers.run", "strangers at the listener of an encrypted job: what they cost it"),
    "gpu": ("gpu.allreduce", "allreduce of NCCL on GPUs, over the plugin and over NCCL's own sockets"),
    "front-page": ("front.page", "no measurement: the README's picture and figures from stored results"),
    "running-job": (
        "front.running_job",
        "no measurement: the pictures of `bagua-net top`, `trace` and `export`, of a job that it starts",
    ),
}


def _usage() -> str:
    width = max(map(len, MEASUREMENTS))
    rows = [f"  {name:<{width}}  {summary}" for name, (_, summary) in MEASUREMENTS.items()]
    return "\n".join(["usage: python3 -m benchmarks NAME [--quick] [--help]", "", *rows])


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0 if argv else 2
    name, *words = argv
    if name not in MEASUREMENTS:
        print(f"benchmarks: there is no measurement {name!r}\n{_usage()}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"benchmarks.{MEASUREMENTS[name][0]}")
    return int(module.main(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
