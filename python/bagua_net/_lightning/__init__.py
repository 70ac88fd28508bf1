# SPDX-License-Identifier: MIT
"""The strategy of PyTorch Lightning, for the package of either name."""
