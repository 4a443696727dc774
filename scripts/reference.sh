# The reference of the command line: docs/reference/.
# shellcheck shell=bash
. scripts/setup.sh

# Writes man pages and a page of the book from the program's definition; a test of the program holds them to it.
dev_reference() {
    need build
    RDMESH_WRITE_REFERENCE=1 cargo test --quiet -p rdmesh-cli --bins the_reference_is_the_programs
}
