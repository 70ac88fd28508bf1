# SPDX-License-Identifier: MIT
"""The network plugins that images preset, for hardware that a machine has or not.

A user of such an image never set these variables, so they are no choice of the user's. A value that is not listed is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .._machine import fabrics, rdma
from .._settings import layers

PLUGIN, NETWORK, TUNER = "NCCL_NET_PLUGIN", "NCCL_NET", "NCCL_TUNER_PLUGIN"
#: A bare file name means NCCL's own default, or one with a name in it (ncclOpenNetPluginLib in its plugin_open.cc).
_FILE = re.compile(r"lib[nr]ccl-(?:net|tuner)(?:-(?P<name>.+))?\.so(?:\.\d+)*")


@dataclass(frozen=True)
class Preset:
    """What one family of images sets."""

    images: str
    #: the hardware that it is for
    hardware: str
    #: NAME in libnccl-net-NAME.so and libnccl-tuner-NAME.so
    names: tuple[str, ...]
    #: where its files are
    directories: tuple[str, ...]
    #: values of NCCL_NET, in lower case
    networks: tuple[str, ...]
    seen: Callable[[layers.Layers], str]


_EVERY = (
    # NGC's PyTorch image: NCCL_NET_PLUGIN=spcx (NVIDIA-NeMo/Megatron-Bridge#5033); its HPC-X has both plugins, and
    # libnccl-net.so as a link to one of them (coreweave/nccl-tests#100).
    Preset(
        "NVIDIA's NGC images (HPC-X)",
        "InfiniBand and RoCE",
        ("spcx", "ibext"),
        ("/opt/hpcx",),
        ("ibext", "spcx"),
        fabrics.infiniband,
    ),
    # AWS's images and EFA's installer: aws-ofi-nccl in /opt/amazon, as "ofi" or "aws-ofi"; Slingshot's hosts as well.
    Preset(
        "AWS's images (aws-ofi-nccl)",
        "EFA and Slingshot",
        ("ofi", "aws-ofi"),
        ("/opt/amazon", "/opt/aws-ofi-nccl"),
        ("aws libfabric", "libfabric"),
        fabrics.libfabric,
    ),
    # Google's images for A3 Ultra and later, as those of its deep learning VMs on other machine types.
    Preset(
        "Google's images (gIB)",
        "the RoCE cards of A3 Ultra and later",
        ("gib",),
        ("/usr/local/gib",),
        ("gib",),
        fabrics.infiniband,
    ),
    # GPUDirect-TCPXO on A3 Mega, GPUDirect-TCPX on A3 High.
    Preset(
        "Google's images (GPUDirect-TCPX and TCPXO)",
        "the network cards of A3 High and A3 Mega",
        ("fastrak", "tcpx", "tcpxo"),
        ("/var/lib/tcpx", "/var/lib/tcpxo", "/usr/local/tcpx", "/usr/local/tcpxo"),
        ("fastrak", "gpudirecttcpx_v7", "gpudirecttcpx"),
        fabrics.gpudirect_tcp,
    ),
)


@dataclass(frozen=True)
class Found:
    """A variable that has a preset's value."""

    setting: layers.Setting
    preset: Preset
    #: the preset's hardware that is here; "": none
    seen: str
    #: why RDMA ports that are up do not count; "": there are none
    unused: str

    def __str__(self) -> str:
        return f"{self.setting} is a preset of {self.preset.images} for {self.preset.hardware}"

    @property
    def why_absent(self) -> str:
        return self.unused or "this machine has none"


def _preset_of_file(value: str, search: str) -> Preset | None:
    """By the name or the directory of a plugin's library, which is looked for on ``search`` as the linker does."""
    path = Path(value)
    match = _FILE.fullmatch(path.name)
    name = match["name"] if match else value
    if match and name is None and "/" not in value:
        found = [Path(one) / value for one in search.split(":") if one and os.path.isfile(Path(one) / value)]
        path = found[0] if found else path
    places = [str(parent) for parent in path.parents]
    return next((one for one in _EVERY if name in one.names or any(each in places for each in one.directories)), None)


def _preset(name: str, value: str, search: str) -> Preset | None:
    if name == NETWORK:
        found = re.sub(r"_v\d+$", "", value.lower()), value.lower()
        return next((one for one in _EVERY if any(each in one.networks for each in found)), None)
    # NCCL takes a list; it is a preset if each of them is of the same one.
    every = {_preset_of_file(one, search) for one in value.split(",") if one}
    return every.pop() if len(every) == 1 else None


def find(setting: layers.Setting, among: layers.Layers) -> Found | None:
    """The preset that the setting is; None: it is none."""
    found = _preset(setting.name, setting.value or "", os.environ.get("LD_LIBRARY_PATH", "")) if setting.value else None
    return Found(setting, found, found.seen(among), rdma.find(among).left) if found else None
