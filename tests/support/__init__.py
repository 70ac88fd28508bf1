# SPDX-License-Identifier: MIT
"""What tests of more than one folder use: programs that are built, processes, ranks, networks, what may be missing."""
