// The cases of the verify program. Each runs alone in a process and returns 0, or SKIP after saying why.
#pragma once

enum { SKIP = 77 };

int case_rc_opcodes(void);
int case_uc_opcodes(void);
int case_ud_messages(void);
int case_scatter_gather(void);
int case_inline_data(void);
int case_unsignaled(void);
int case_fence(void);
int case_atomics(void);
int case_atomic_contention(void);
int case_send_with_invalidate(void);
int case_shared_receive_queue(void);
int case_random_soak(void);

int case_big_region(void);
int case_huge_pages(void);
int case_shared_mapping(void);
int case_odd_memory(void);
int case_read_only_memory(void);
int case_overlapping_regions(void);
int case_register_often(void);
int case_unmapped_and_reused(void);
int case_deregister_in_use(void);
int case_fork_isolation(void);
int case_fork_child_opens_device(void);
int case_fork_meets_commands(void);
int case_neighbour_writers(void);

int case_receiver_not_ready(void);
int case_receiver_ready_late(void);
int case_remote_access(void);
int case_local_protection(void);
int case_short_receive(void);
int case_bad_receive_key(void);
int case_nobody_there(void);
int case_flush_on_error_state(void);
int case_unreliable_drops(void);
int case_reuse_after_error(void);
int case_wrong_state(void);
int case_destroyed_peer(void);

int case_completion_channel(void);
int case_solicited_only(void);
int case_srq_limit(void);
int case_cq_overflow(void);
int case_last_wqe_reached(void);
int case_access_error_event(void);
int case_threads(void);
int case_shared_context_threads(void);
int case_many_contexts(void);
