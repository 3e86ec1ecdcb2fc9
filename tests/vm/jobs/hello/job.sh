#!/bin/sh
# Ends in the way that ENDING says; test_runner.py holds the runner to what it makes of each.
echo "hello from Linux $(uname -r), $(nproc) processors"
case ${ENDING:-0} in
    crash) exec "$VM_PYTHON" -c 'import os, signal; os.kill(os.getpid(), signal.SIGSEGV)' ;;
    panic) echo c >/proc/sysrq-trigger ;;
    lie) echo 0 >code && echo c >/proc/sysrq-trigger ;;
    hang) exec sleep 1000 ;;
    write) echo gone >"$VM_JOB/written" && cat "$VM_JOB/written" ;;
    *) exit "${ENDING:-0}" ;;
esac
