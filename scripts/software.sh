# The page about software that runs: docs/software.md.
# shellcheck shell=bash
. scripts/test.sh

# Runs all of its rows; with --publish writes the figures of this run into it.
dev_software() {
    if [[ ${1:-} == --publish ]]; then export RDMESH_PUBLISH=1; fi
    dev_test software
}
