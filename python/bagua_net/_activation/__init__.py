# SPDX-License-Identifier: MIT
"""Turns the plugin on and off, in processes and in configuration files, and tells whether it is on."""
