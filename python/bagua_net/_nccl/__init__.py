# SPDX-License-Identifier: MIT
"""NCCL as it is installed: which one a job uses, whether it has chosen its network, and its own sockets."""
