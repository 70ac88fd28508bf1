# SPDX-License-Identifier: MIT
"""The doctor between hosts: one of them asks, all of them listen, connect and send."""
