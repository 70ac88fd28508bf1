# SPDX-License-Identifier: MIT
"""Strangers at the listener of a job that runs: what they cost it."""
