# SPDX-License-Identifier: MIT
"""The subcommands of ``bagua-net``: options and output. The other packages do the work."""
