#!/usr/bin/env bash
# Checks the GPU kernels against float64 and times them, in one run of under 8 minutes.
# Needs an NVIDIA GPU, PyTorch and Triton, and nothing else. PYTHON chooses the interpreter.
#
#   benchmarks/gpu.sh --output gpu.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
