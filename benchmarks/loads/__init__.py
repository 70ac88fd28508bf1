# SPDX-License-Identifier: MIT
"""The loads and their processes: streams, ping-pong and collectives, up to the reading of each."""
