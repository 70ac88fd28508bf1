# SPDX-License-Identifier: MIT
"""The networks that can be measured, behind one interface."""
