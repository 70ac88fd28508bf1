# SPDX-License-Identifier: MIT
"""The ranks of a run: where they live, how they start and meet, and what each one measures."""
