# SPDX-License-Identifier: MIT
"""Jobs of several ranks for the tests of real NCCL: each rank a process of its own that takes itself for a host.

The parts, in the order in which a job passes them:

- ``plan``: which collectives, how large, with which of NCCL's protocols. ``job``: what travels to the ranks.
- ``launch``: the processes, started together and never left behind. ``rank``: the life of one.
- ``member``: what a rank's program works with. ``collectives``, ``communicators``, ``training``: the programs.
- ``counters``, ``nccl_log``: which network it was, said by the plugin and by NCCL. ``nccl_tests``: NVIDIA's own tests.

On the CPU the same programs run over gloo and over the torch backend of this package, which is how everything here that
needs no GPU is tested without one.
"""
