#!/bin/sh
# Kills saves into a folder on NFS, at every third call, since one takes a second on a machine at rest and ten on a busy one
# (--set SIDESTEP_TEST_KILL_EVERY=1 takes them all). FAILURE_TESTS is the program of tests/failure.
set -eu
PATH="$VM_TOOLS/usr/sbin:$VM_TOOLS/sbin:$PATH"
export LD_LIBRARY_PATH="$VM_TOOLS/usr/lib/x86_64-linux-gnu:$VM_TOOLS/lib/x86_64-linux-gnu"
ip link set lo up
mkdir -p /srv/nfs /mnt/nfs /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /etc/exports
mount -t tmpfs served /srv/nfs
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,sync,no_root_squash,no_subtree_check,insecure,fsid=0 127.0.0.1:/srv/nfs
rpc.mountd --no-udp --no-nfs-version 2 --no-nfs-version 3
# After a start the server gives locks to nobody for the grace time, of which 10 s are the least.
rpc.nfsd --no-nfs-version 3 --grace-time 10 --lease-time 10 2
unset LD_LIBRARY_PATH
mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1 127.0.0.1:/ /mnt/nfs
SIDESTEP_TEST_NFS=/mnt/nfs SIDESTEP_TEST_KILL_EVERY="${SIDESTEP_TEST_KILL_EVERY:-3}" exec "$FAILURE_TESTS" --gtest_filter='On/KilledSave.*/nfs'
