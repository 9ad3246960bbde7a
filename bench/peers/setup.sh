#!/bin/sh
# Builds .venv-peers in the repository's root: the libraries we compare with, apart from our own environment.
set -eu
cd "$(dirname "$0")/../.."
"${PYTHON:-python3}" -m venv .venv-peers
# torch first and at exactly this version: left to the resolver it may come with gigabytes of CUDA.
# The CPU build is enough; run.py never uses another device for it.
.venv-peers/bin/python -m pip install --quiet "$(grep '^torch==' bench/peers/requirements.txt)"
.venv-peers/bin/python -m pip install --quiet -r bench/peers/requirements.txt
