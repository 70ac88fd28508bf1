# SPDX-License-Identifier: MIT
"""Rings of hosts: how soon, and for how long, all edges run at full rate."""
