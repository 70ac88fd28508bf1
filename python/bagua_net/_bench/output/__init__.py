# SPDX-License-Identifier: MIT
"""The output of a run: table, sentences, JSON and picture."""
