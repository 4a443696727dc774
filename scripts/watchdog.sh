# A limit for everything that runs long: what exceeds it is shown, with stacks, and killed with all its descendants.
# shellcheck shell=bash

# Environment variable that a guarded command and its descendants share; it finds those that left its process group.
GUARD_MARK=RDMESH_GUARD

# guarded_processes MARK: process ids of all that carry the mark, and perhaps marks of guards within.
guarded_processes() {
    local environ pid
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/} pid=${pid%/environ}
        if grep -qzsE "^$GUARD_MARK=(.*/)?$1(/|\$)" "$environ"; then printf '%s\n' "$pid"; fi
    done
}

# kernel_stack DIRECTORY-OF-A-THREAD: the system call that it is in, and the kernel's stack where this user may read it.
kernel_stack() {
    local task=$1
    printf '      thread %s (%s) in %s, system call %s\n' "${task##*/}" "$(cat "$task/comm")" "$(cat "$task/wchan")" "$(cut -d' ' -f1 "$task/syscall")"
    sed 's/^/        /' "$task/stack" | head -n 12
}

# show_processes PID...: what they are and where each thread of them is.
show_processes() {
    local pid task
    ps -o pid,ppid,stat,etimes,args -p "$(IFS=, && printf '%s' "$*")" || true
    for pid in "$@"; do
        printf '    %s %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-160)"
        for task in "/proc/$pid/task"/*; do kernel_stack "$task" 2>/dev/null || true; done
        if command -v gdb >/dev/null; then
            timeout 20 gdb -p "$pid" -batch -ex 'thread apply all backtrace 8' 2>/dev/null | grep -E '^(Thread|#)' | sed 's/^/      /' || true
        fi
    done
}

# watch_over SECONDS WHAT MARK: at the limit shows what carries the mark, and kills it until nothing is left.
watch_over() {
    local limit=$1 what=$2 mark=$3 processes begin=$SECONDS
    while ((SECONDS - begin < limit)); do sleep 1 >/dev/null 2>&1; done
    # The command's end, which is near now, must not end this before all is killed.
    trap '' TERM
    mapfile -t processes < <(guarded_processes "$mark")
    printf '\nerror: %s has reached its limit of %d s and is killed. These processes run:\n' "$what" "$limit" >&2
    show_processes "${processes[@]}" >&2
    while ((${#processes[@]})); do
        kill -KILL "${processes[@]}" 2>/dev/null || true
        sleep 0.2
        mapfile -t processes < <(guarded_processes "$mark")
    done
}

# guarded SECONDS WHAT COMMAND...: runs the command; where it takes longer than SECONDS, prints what runs, kills it and fails.
guarded() {
    local limit=$1 what=$2 mark="$BASHPID-$RANDOM" watcher status=0
    shift 2
    watch_over "$limit" "$what" "$mark" &
    watcher=$!
    env "$GUARD_MARK=${!GUARD_MARK:+${!GUARD_MARK}/}$mark" "$@" || status=$?
    kill $watcher 2>/dev/null || true
    wait $watcher 2>/dev/null || true
    return $status
}
