# The reference of the command line: docs/reference/, and packaging/config.toml.
# shellcheck shell=bash
. scripts/setup.sh

# Writes man pages, a page of the book and a configuration file from the program's definition; a test of the program holds them to it.
dev_reference() {
    need build
    RDMESH_WRITE_REFERENCE=1 cargo test --quiet -p rdmesh-cli --bins reference::
}
