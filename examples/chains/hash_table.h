/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What server and clients agree on. */
#pragma once
#include <rdmesh_chain.h>

enum { PORT = 18640 };

static const struct rdmesh_hash_shape SHAPE = {.buckets = 1024, .records = 512, .record_size = 4096};
