# SPDX-License-Identifier: MIT
"""The variables of a job: where they come from, and the plugin's parameters among them."""
