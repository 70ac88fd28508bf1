# SPDX-License-Identifier: MIT
"""Steps of training with and without the algorithms, on networks of several speeds."""
