#!/bin/sh
# Sockets encrypted by the kernel at both ends, or at one of them and by OpenSSL at the other: LINKS_PROGRAM is that of tests/network.
set -eu
# They fail where the kernel does not take part.
export SIDESTEP_TEST_KERNEL_TLS=1
ip link set lo up
exec "$LINKS_PROGRAM" --gtest_filter='*TlsSocket*'
