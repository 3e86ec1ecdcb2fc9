#!/bin/sh
exec "$VM_PYTHON" -u "$VM_JOB/check.py"
