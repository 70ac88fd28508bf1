# SPDX-License-Identifier: MIT
"""What algorithms cost in accuracy. The tasks, the rows and the training are those of ``tests/algorithms``."""
