# SPDX-License-Identifier: MIT
"""What a training step would take over a link, by formula: nothing here measures."""
