# SPDX-License-Identifier: MIT
"""The installed NCCL: which one a job uses, whether it has chosen its network, and its own Socket network."""
