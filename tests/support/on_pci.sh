#!/bin/sh
# SPDX-License-Identifier: MIT
# ip netns exec HOST on_pci.sh COMMAND...: COMMAND sees link0, link1 ... as PCI cards, each in a slot of its own. Only its
# own mounts change; the attributes are a copy of those in sysfs.
set -eu
slots=$(find /sys/devices/pci* -maxdepth 1 -name '????:??:??.?' | sort)
shown=$(mktemp -d)
mount -t tmpfs on_pci "$shown"
for link in /sys/class/net/link*; do
	name=${link##*/}
	mkdir "$shown/$name"
	for attribute in address carrier flags ifindex mtu operstate speed type; do
		cat "$link/$attribute" >"$shown/$name/$attribute" 2>/dev/null || true
	done
	slot=$(echo "$slots" | sed -n "$((${name#link} + 1))p")
	ln -s "$slot" "$shown/$name/device"
done
mount --move "$shown" /sys/class/net
rmdir "$shown"
exec "$@"
