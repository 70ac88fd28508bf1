# SPDX-License-Identifier: MIT
"""Allreduce of NCCL itself on GPUs."""
