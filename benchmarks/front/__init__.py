# SPDX-License-Identifier: MIT
"""The README's picture and figures, from stored results."""
