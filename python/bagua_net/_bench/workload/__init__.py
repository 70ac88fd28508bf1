# SPDX-License-Identifier: MIT
"""What a run measures: options, operations, data, and the figures of one row."""
