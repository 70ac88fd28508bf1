# SPDX-License-Identifier: MIT
"""Hardware of this machine: network interfaces as the plugin sees them, and RDMA ports."""
