# SPDX-License-Identifier: MIT
"""The subcommands of ``bagua-net``: options and output. What they do is in the other packages."""
