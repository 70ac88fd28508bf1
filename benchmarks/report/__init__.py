# SPDX-License-Identifier: MIT
"""What was read: the results file, and the tables and pictures made of it."""
