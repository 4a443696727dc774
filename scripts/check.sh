# The quick check of a change: formatting, clippy and the tests of the crates that it touches.
# shellcheck shell=bash
. scripts/setup.sh
. scripts/watchdog.sh

CHECK_LIMIT=1800

check_usage() {
    cat <<'END'
usage: ./dev check [CRATE|all] [FILTER]

  Formatting, clippy and the tests of CRATE (nic, router, tests …), or of the crates that differ from the last commit. With
  FILTER only the tests whose names contain it. Whole-system tests are `./dev test PART`.
END
}

# changed_files: what differs from the last commit; where nothing does, what the last commit changed.
changed_files() {
    local files
    files=$(git diff --name-only HEAD && git ls-files --others --exclude-standard)
    if [[ -z $files ]]; then files=$(git diff --name-only HEAD~1 HEAD); fi
    printf '%s\n' "$files"
}

# crates_of FILE...: the packages that the files lie in, each once.
crates_of() {
    local file
    for file in "$@"; do
        case $file in
            crates/*/*) file=${file#crates/} && printf 'rdmesh-%s\n' "${file%%/*}" ;;
            tests/src/* | tests/tests/* | tests/Cargo.toml) printf 'rdmesh-tests\n' ;;
            bench/*) printf 'rdmesh-bench\n' ;;
        esac
    done | sort -u
}

check_crates() {
    local filter=$1 crate options=()
    shift
    for crate in "$@"; do options+=(-p "$crate"); done
    step "formatting" cargo fmt --all --check
    step "clippy of $*" cargo clippy "${options[@]}" --all-targets -- -D warnings
    for crate in "$@"; do
        # The rest of the harness's tests need the built product.
        if [[ $crate == rdmesh-tests ]]; then
            step "tests of $crate" cargo test --quiet -p "$crate" --lib --test architecture --test mutants --test watchdog -- "$filter"
        else
            step "tests of $crate" cargo test --quiet -p "$crate" -- "$filter"
        fi
    done
}

dev_check() {
    local crates=() files=() filter=${2:-}
    case ${1:-} in
        '')
            mapfile -t files < <(changed_files)
            mapfile -t crates < <(crates_of "${files[@]}")
            ;;
        all) mapfile -t crates < <(crates_of crates/*/Cargo.toml tests/Cargo.toml bench/Cargo.toml) ;;
        tests | bench) crates=("rdmesh-$1") ;;
        *)
            [[ -f crates/$1/Cargo.toml ]] || {
                check_usage >&2
                exit 2
            }
            crates=("rdmesh-$1")
            ;;
    esac
    need build
    if [[ " ${files[*]} " == *" scripts/"* || " ${files[*]} " == *" dev "* ]]; then
        need_packages shellcheck
        step "shell scripts" shellcheck -x dev .ci/run scripts/*.sh
    fi
    if ((${#crates[@]})); then
        # shellcheck disable=SC2016 # the inner shell's variables
        guarded $CHECK_LIMIT "the check" bash -euo pipefail -c '. scripts/lib.sh && . scripts/check.sh && check_crates "$@"' bash "$filter" "${crates[@]}"
    fi
    say "checked: ${crates[*]:-no crate} in $SECONDS s"
}
