# SPDX-License-Identifier: MIT
"""The shared library: where it is, its version, and calls into it."""
