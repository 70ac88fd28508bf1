# SPDX-License-Identifier: MIT
"""Bagua's names for processes that multiprocessing starts afresh: what this folder's place on ``sys.path`` leads to.
The module that is imported is the one of bagua_net.compat; this one goes."""

from bagua_net.compat._install import install_for_workers

install_for_workers()
