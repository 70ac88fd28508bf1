# SPDX-License-Identifier: MIT
"""Whether a file is on this host: SQLite's WAL mode works on any file system that maps files into memory, also on those
that hosts share, where each host has a memory of its own and the file is damaged."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from ._errors import CacheUnusable

_MOUNTS = Path("/proc/self/mountinfo")
#: Blanks, tabs, line feeds and backslashes of a name, as the kernel writes them.
_ESCAPED = re.compile(r"\\([0-7]{3})")
_FUSE = "fuse."
_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2"),
    *("orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "vmhgfs", "wekafs"),
}
#: Programs behind FUSE. Others are taken as local, as fuse-overlayfs of containers and mergerfs are.
_NETWORK_BY_FUSE = {
    *("alluxio-fuse", "blobfuse", "blobfuse2", "ceph-fuse", "curlftpfs", "daos", "davfs", "gcsfuse", "geesefs"),
    *("glusterfs", "goofys", "juicefs", "lizardfs", "mfs", "moosefs", "mountpoint-s3", "objectivefs", "ossfs"),
    *("quobyte", "rclone", "s3fs", "saunafs", "seaweedfs", "smbnetfs", "sshfs", "vmhgfs-fuse"),
}


class Mount(NamedTuple):
    point: str
    kind: str
    """The file system's name."""

    @property
    def is_shared_by_hosts(self) -> bool:
        if self.kind.startswith(_FUSE):
            return self.kind.removeprefix(_FUSE) in _NETWORK_BY_FUSE
        return self.kind in _NETWORK


def check_local(path: Path) -> None:
    """
    Raises:
        CacheUnusable: the path leads to a file system that other hosts have too.
    """
    try:
        mounts = os.fsdecode(_MOUNTS.read_bytes())
    except OSError:  # a sandbox without /proc
        return
    mount = mount_of(os.path.realpath(path), mounts)
    if mount is not None and mount.is_shared_by_hosts:
        raise CacheUnusable(
            f"{path} is on {mount.point}, a file system that hosts share ({mount.kind}): put the cache on a local disk"
        )


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that an absolute path without links leads to: the one whose point has most of it.

    Args:
        mountinfo: the text of /proc/self/mountinfo, as proc(5) describes it.
    """
    found = None
    for line in mountinfo.split("\n"):  # a name may have what splitlines() takes for the end of a line
        about, dash, source = line.partition(" - ")
        fields = about.split(" ")
        if not dash or len(fields) < 5:
            continue
        mount = Mount(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4]), source.split(" ")[0])
        # Of two at one point the later one hides the other.
        if _is_below(path, mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
