# SPDX-License-Identifier: MIT
"""torch.distributed's operations over the backend and over gloo: the same processes make both groups and alternate."""
