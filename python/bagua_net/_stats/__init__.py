# SPDX-License-Identifier: MIT
"""What running processes show of their connections: files in memory, and what follows from them."""
