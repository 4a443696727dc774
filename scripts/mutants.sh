# The checkers are checked: each mutation of the code in tests/mutants/ must make a test fail.
#
# A mutation is a paragraph of one of those files:
#
#   == what becomes wrong
#   file: the source file
#   by: the tests that must fail, in the order in which they are tried
#   - text that is replaced, which the file has exactly once; more lines follow with further dashes
#   + its replacement, likewise; without one the text is removed
#
# Tests are named CRATE[/TARGET][::FILTER]: `nic::engine` stands for those of the library of `rdmesh-nic` with `engine` in their
# names, `sim/seeds` for those in crates/sim/tests/seeds.rs.
# shellcheck shell=bash
. scripts/setup.sh

MUTANTS=target/mutants
# Seconds for one run of tests, with what has to be compiled. A test that does not end has noticed something, too.
MUTANT_LIMIT=${MUTANT_LIMIT:-300}
export RDMESH_SIM_SEEDS=${RDMESH_SIM_SEEDS:-400}

# The tree as it is, in a folder of its own, where nothing else is changed or built. Files that did not change keep their times.
copy_tree() {
    local tree=$MUTANTS/tree file
    mkdir -p "$tree"
    git ls-files --cached --others --exclude-standard | while IFS= read -r file; do
        if [[ -f $file ]] && ! cmp -s "$file" "$tree/$file"; then
            mkdir -p "$tree/$(dirname "$file")"
            cp "$file" "$tree/$file"
        fi
    done
}

# run_mutant_tests TEST: in the copy; true if they pass.
run_mutant_tests() {
    local test=$1 filter='' options
    if [[ $test == *::* ]]; then filter=${test#*::}; fi
    test=${test%%::*}
    case $test in
        */*) options=(-p "rdmesh-${test%%/*}" --test "${test#*/}") ;;
        *) options=(-p "rdmesh-$test" --lib) ;;
    esac
    (cd "$MUTANTS/tree" && CARGO_TARGET_DIR=../build timeout "$MUTANT_LIMIT" cargo test -q "${options[@]}" -- "$filter")
}

# try_mutant TESTS FILE: one line about the mutation that the copy of FILE has; false if it survives.
try_mutant() {
    local test status log=$MUTANTS/log
    for test in $1; do
        status=0
        run_mutant_tests "$test" >"$log" 2>&1 || status=$?
        if ((status == 124)); then
            printf 'caught by time-out (%s)\n' "$test"
        elif grep -q '^error.*could not compile' "$log"; then
            printf 'DOES NOT COMPILE\n'
            grep -m 3 -A 6 '^error' "$log"
            return 1
        elif ((status != 0)); then
            printf 'caught by %s\n' "$(sed -n '/^---- .* stdout ----$/{s/^---- //;s/ stdout ----$//;p;q}' "$log" | grep . || printf '%s (it ended early)' "$test")"
        else
            continue
        fi
        return 0
    done
    printf 'SURVIVED (%s)\n' "$1"
    return 1
}

# Whether the tests pass without a mutation; asked once for each.
declare -A UNCHANGED
pass_unchanged() {
    local test
    for test in $1; do
        if [[ -z ${UNCHANGED[$test]-} ]]; then
            UNCHANGED[$test]=passes
            run_mutant_tests "$test" >"$MUTANTS/log" 2>&1 || UNCHANGED[$test]=fails
        fi
        if [[ ${UNCHANGED[$test]} == fails ]]; then
            printf '%s FAILS WITHOUT IT\n' "$test"
            return 1
        fi
    done
}

# check_mutant NAME FILE TESTS OLD NEW: applies the mutation to the copy, runs the tests, and undoes it.
check_mutant() {
    local name=$1 file=$2 tests=$3 old=$4 new=$5 text rest failed=0
    printf '  %s ... ' "$name"
    text=$(<"$file")
    rest=${text#*"$old"}
    if [[ $rest == "$text" || $rest == *"$old"* ]]; then
        printf 'OUT OF DATE: %s does not have the text exactly once\n' "$file"
        return 1
    fi
    pass_unchanged "$tests" || return 1
    printf '%s%s%s\n' "${text%%"$old"*}" "$new" "$rest" >"$MUTANTS/tree/$file"
    try_mutant "$tests" || failed=1
    cp "$file" "$MUTANTS/tree/$file"
    return $failed
}

# Calls `check_mutant` for each mutation on standard input whose name contains one of the words, or for all.
check_mutants() {
    local line name='' file='' tests='' old='' new='' word chosen failed=0
    while IFS= read -r line || [[ -n $name ]]; do
        case $line in
            '== '*) name=${line#== } file='' tests='' old='' new='' ;;
            'file: '*) file=${line#file: } ;;
            'by: '*) tests=${line#by: } ;;
            '- '*) old+=${old:+$'\n'}${line#- } ;;
            '+ '*) new+=${new:+$'\n'}${line#+ } ;;
            '')
                if [[ -n $name ]]; then
                    chosen=$(($# == 0))
                    for word in "$@"; do [[ $name != *"$word"* ]] || chosen=1; done
                    ((!chosen)) || check_mutant "$name" "$file" "$tests" "$old" "$new" </dev/null || failed=1
                fi
                name=''
                ;;
        esac
    done
    return $failed
}

dev_mutants() {
    local list failed=0 names
    if [[ ${1:-} == --sample ]]; then
        mapfile -t names < <(sed -n 's/^== //p' tests/mutants/*.txt | sample "${2:-2}")
        set -- "${names[@]}"
    fi
    need build
    step "copying the tree" copy_tree
    for list in tests/mutants/*.txt; do
        bold "== $list"
        check_mutants "$@" <"$list" || failed=1
    done
    ((!failed)) || die "a mutation is not caught, or out of date"
}
