#!/bin/sh
# The groups of modules in tests/vm/initramfs work on this kernel: a drive and a network card get their drivers, and
# Soft-RoCE comes up on a made-up card.
set -eu

# NVMe's driver looks for its devices in the background.
tries=0
until [ -b /dev/nvme0n1 ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "no /dev/nvme0n1"; exit 1; }
    sleep 0.1
done
grep -qw ext4 /proc/filesystems
[ -e /sys/class/net/eth0/device/driver ]
for module in ib_uverbs rdma_ucm ib_umad veth; do
    grep -q "^$module " /proc/modules
done

if command -v rdma >/dev/null; then
    ip addr add 10.9.0.1/24 dev dummy0
    ip link set dummy0 up
    rdma link add rxe0 type rxe netdev dummy0
    rdma link show rxe0/1 | grep "state ACTIVE"
else
    echo "Soft-RoCE is loaded but not tried: this host has no iproute2"
fi
exec "$VM_PYTHON" "$VM_JOB/check.py"
