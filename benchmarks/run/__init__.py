# SPDX-License-Identifier: MIT
"""The run: which cells are measured, by which sides, in which order, and the command line."""
