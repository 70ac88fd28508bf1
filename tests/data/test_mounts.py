# SPDX-License-Identifier: MIT
"""File systems that hosts share are no place for a cache: which mount a path leads to, and of which kind it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bagua_net.data import CacheLoader, CacheUnusable, _mounts
from bagua_net.data._mounts import Mount, mount_of

_TEXT = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
25 24 0:23 / /dev/shm rw,relatime shared:4 master:1 - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:40 / /data rw,relatime shared:5 - nfs4 server:/data rw,addr=10.0.0.1
31 30 254:1 / /data/scratch rw,relatime - xfs /dev/nvme0n1 rw
32 27 0:41 / /my\040data\011with\134all rw - fuse.sshfs me@server: rw
33 27 0:42 / /twice rw - lustre 10.0.0.1@tcp:/fs rw
34 33 0:43 / /twice rw - tmpfs tmpfs rw
no line of this file
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/", Mount("/", "ext4")),
        ("/home/me/x.cache", Mount("/", "ext4")),
        ("/dev/shm/x.cache", Mount("/dev/shm", "tmpfs")),
        ("/data", Mount("/data", "nfs4")),
        ("/data/x.cache", Mount("/data", "nfs4")),
        ("/database/x.cache", Mount("/", "ext4")),
        ("/data/scratch/x.cache", Mount("/data/scratch", "xfs")),
        ("/my data\twith\\all/x.cache", Mount("/my data\twith\\all", "fuse.sshfs")),
        ("/twice/x.cache", Mount("/twice", "tmpfs")),
    ],
)
def test_a_path_leads_to_the_mount_that_has_most_of_it(path: str, mount: Mount) -> None:
    assert mount_of(path, _TEXT) == mount


def test_the_mounts_of_this_host_are_understood(tmp_path: Path) -> None:
    mount = mount_of(os.path.realpath(tmp_path), Path("/proc/self/mountinfo").read_text())
    assert mount is not None
    assert os.path.ismount(mount.point)
    assert mount_of("/x.cache", "") is None


_SHARED = [
    *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "beegfs", "9p", "afs", "gfs2", "ocfs2"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.quobyte"),
]
_LOCAL = [
    *("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "virtiofs"),
    *("fuse", "fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs"),
]


@pytest.mark.parametrize(("kind", "shared"), [*((kind, True) for kind in _SHARED), *((kind, False) for kind in _LOCAL)])
def test_hosts_share_network_file_systems_only(kind: str, shared: bool) -> None:
    assert Mount("/", kind).is_shared_by_hosts is shared


def test_a_cache_on_a_file_system_of_several_hosts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file system is needed to see it: only what the kernel would say of one."""
    place, link, mounts = tmp_path / "place", tmp_path / "link", tmp_path / "mounts"
    place.mkdir()
    link.symlink_to(place)
    mounts.write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n30 27 0:40 / {place} rw - nfs4 server:/data rw\n")
    monkeypatch.setattr(_mounts, "_MOUNTS", mounts)
    for path in (place / "x.cache", link / "x.cache"):
        with pytest.raises(CacheUnusable, match=rf"is on {place}, .*\(nfs4\): put the cache on a local disk"):
            CacheLoader(path)
    assert list(place.iterdir()) == []
    monkeypatch.setattr(_mounts, "_MOUNTS", tmp_path / "absent")
    CacheLoader(place / "x.cache").close()
