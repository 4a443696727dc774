/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What librdmesh.so offers to programs that know of it. No program needs to: preloading the library is enough for a
 * device to appear.
 *
 * Link with -lrdmesh, or look the functions up with dlsym(RTLD_DEFAULT, ...) where the library may be absent.
 */
#ifndef RDMESH_H
#define RDMESH_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates `size` zeroed bytes of memory that the router shares from the start: registering it (ibv_reg_mr) turns no
 * pages and disturbs no other thread. Page-aligned; meant for buffers, not for small objects, since it takes whole
 * pages. Returns NULL with errno ENOMEM on failure. Works without an endpoint too; the memory is plain memory then.
 *
 * After fork() the child has a copy of its own, as of any memory.
 */
void *rdmesh_malloc(size_t size);

/*
 * Frees memory from rdmesh_malloc. NULL and other addresses are ignored. Registrations of the memory must be gone.
 */
void rdmesh_free(void *ptr);

#ifdef __cplusplus
}
#endif

#endif
