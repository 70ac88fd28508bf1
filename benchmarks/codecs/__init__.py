# SPDX-License-Identifier: MIT
"""The compressed allreduce against the uncompressed one, and the speed of the codecs."""
