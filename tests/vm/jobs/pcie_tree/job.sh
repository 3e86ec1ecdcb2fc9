#!/bin/sh
exec "$VM_PYTHON" "$VM_JOB/check.py"
