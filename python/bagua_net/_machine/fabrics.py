# SPDX-License-Identifier: MIT
"""The networks for which cloud images and containers preset a plugin of NCCL's: is their hardware here?

Each function returns the name of what it has found; "": nothing. sysfs is the host's, also in a container.
"""

from __future__ import annotations

from pathlib import Path

from .._settings import layers
from . import rdma

PCI_DEVICES = Path("/sys/bus/pci/devices")
#: HPE's driver of Slingshot lists its devices here.
SLINGSHOT = Path("/sys/class/cxi")

#: Linux's drivers/infiniband/hw/efa/efa_main.c: 0x1d0f with 0xefa0 and later.
_AMAZON = "0x1d0f"
#: Linux's drivers/net/ethernet/google/gve/gve.h
_GVNIC = ("0x1ae0", "0x0042")
#: GPUDirect-TCPX and TCPXO have a card for one or two GPUs beside the first card: 5 on A3 High, 9 on A3 Mega. Other
#: machine types have one card, or a few for several networks (Google's "Maximize GPU network bandwidth").
_GVNICS_OF_A3 = 5


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _is_amazons(port: rdma.RdmaPort) -> bool:
    return _read(rdma.SYSFS / port.device / "device" / "vendor") == _AMAZON


def infiniband(among: layers.Layers) -> str:
    """InfiniBand or RoCE that a job with these settings would use."""
    return ", ".join(str(port) for port in rdma.find(among).used if port.is_verbs and not _is_amazons(port))


def libfabric(among: layers.Layers) -> str:
    """What aws-ofi-nccl drives: EFA, or Slingshot."""
    efa = [str(port) for port in rdma.find(among).used if _is_amazons(port)]
    return ", ".join([*efa, *sorted(path.name for path in SLINGSHOT.glob("cxi*"))])


def gpudirect_tcp(among: layers.Layers) -> str:
    """Google's virtual network cards in the number that GPUDirect-TCPX and TCPXO have."""
    del among
    cards = [one for one in PCI_DEVICES.glob("*") if (_read(one / "vendor"), _read(one / "device")) == _GVNIC]
    return f"{len(cards)} gVNICs" if len(cards) >= _GVNICS_OF_A3 else ""
