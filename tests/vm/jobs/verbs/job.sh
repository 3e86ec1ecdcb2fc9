#!/bin/sh
# Brings Soft-RoCE up on two made-up cards, with the libraries that were unpacked for the guests.
set -eu
command -v rdma >/dev/null || { echo "this host has no iproute2"; exit 1; }
ip link add dummy1 type dummy
for i in 0 1; do
    ip link set dummy$i mtu 4200
    ip addr add 10.9.$i.1/24 dev dummy$i
    ip link set dummy$i up
    rdma link add rxe$i type rxe netdev dummy$i
done
# libibverbs looks for its drivers at these places only.
mkdir -p /etc/libibverbs.d /usr/lib/x86_64-linux-gnu/libibverbs
ln -sf "$VM_TOOLS/etc/libibverbs.d/rxe.driver" /etc/libibverbs.d/
ln -sf "$VM_TOOLS"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so /usr/lib/x86_64-linux-gnu/libibverbs/
export LD_LIBRARY_PATH="$VM_TOOLS/usr/lib/x86_64-linux-gnu:$VM_TOOLS/lib/x86_64-linux-gnu"
export SIDESTEP_TEST_VERBS=rxe0 SIDESTEP_TEST_NETDEV=dummy0
export SIDESTEP_TEST_OTHER_VERBS=rxe1 SIDESTEP_TEST_OTHER_NETDEV=dummy1 SIDESTEP_DMA_BUF_VERBS="$DMA_BUF_VERBS"
exec "$VM_PYTHON" -u "$VM_JOB/check.py"
