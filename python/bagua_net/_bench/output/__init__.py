# SPDX-License-Identifier: MIT
"""What a run leaves: table, sentences, JSON and picture."""
