# SPDX-License-Identifier: MIT
"""Jobs of several ranks for the tests of real NCCL: each rank is a process that NCCL treats as a separate host.

The parts, in the order in which a job passes them:

- ``plan``: which collectives, which sizes, which of NCCL's protocols. ``job``: the description that the ranks get.
- ``launch``: the processes, started together and never left behind. ``rank``: the life of one.
- ``member``: a rank's device, group and meeting place. ``collectives``, ``communicators``, ``training``: the programs.
- ``counters``, ``nccl_log``: the network used, as reported by the plugin and by NCCL. ``nccl_tests``: NVIDIA's tests.

On the CPU the same programs run over gloo and over the torch backend of this package: that tests everything here that
needs no GPU.
"""
