# SPDX-License-Identifier: MIT
"""The networks that are measured: namespaces with or without flow classes, and an emulated wide-area network."""
