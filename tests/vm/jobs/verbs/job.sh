#!/bin/sh
# Brings Soft-RoCE up on a made-up card, with the libraries that were unpacked for the guests.
set -eu
command -v rdma >/dev/null || { echo "this host has no iproute2"; exit 1; }
ip link set dummy0 mtu 4200
ip addr add 10.9.0.1/24 dev dummy0
ip link set dummy0 up
rdma link add rxe0 type rxe netdev dummy0
# libibverbs looks for its drivers at these places only.
mkdir -p /etc/libibverbs.d /usr/lib/x86_64-linux-gnu/libibverbs
ln -sf "$VM_TOOLS/etc/libibverbs.d/rxe.driver" /etc/libibverbs.d/
ln -sf "$VM_TOOLS"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so /usr/lib/x86_64-linux-gnu/libibverbs/
export LD_LIBRARY_PATH="$VM_TOOLS/usr/lib/x86_64-linux-gnu:$VM_TOOLS/lib/x86_64-linux-gnu"
export SIDESTEP_TEST_VERBS=rxe0 SIDESTEP_TEST_NETDEV=dummy0
exec "$VM_PYTHON" -u "$VM_JOB/check.py"
