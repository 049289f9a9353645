/* Constants in the layouts of kernels, shared by all sessions of the library that have equal ones. */
#ifndef GRAPHOPT_PACKED_H
#define GRAPHOPT_PACKED_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

#define GO_MOST_DIMS 16

typedef struct go_shared_constant {
  struct go_shared_constant *next;
  void (*pack)(const void *, const int64_t *, void *);
  int64_t dims[GO_MOST_DIMS];
  uint64_t digest[2]; /* of the elements that were packed */
  int uses;
  void *elements;
} go_shared_constant;

static go_shared_constant *go_all_packed = NULL;
static pthread_mutex_t go_packed_lock = PTHREAD_MUTEX_INITIALIZER;

/* Memory for at least one byte, aligned to GO_ALIGNMENT; NULL if there is none. */
static void *go_aligned(size_t bytes) {
  void *memory = NULL;
  return posix_memalign(&memory, GO_ALIGNMENT, bytes > 0 ? bytes : 1) == 0 ? memory : NULL;
}

/* The bytes of an element, by the number of its type in ONNX. */
static size_t go_element_bytes(size_t type) {
  static const unsigned char bytes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};
  return type < sizeof bytes ? bytes[type] : 1;
}

/* Two digests of 64 bits, which differ in their multipliers: equal contents are found without a copy of them. */
static void go_digest(const void *data, size_t bytes, uint64_t digest[2]) {
  const unsigned char *at = data;
  uint64_t a = 0x9e3779b97f4a7c15u ^ bytes, b = 0xc2b2ae3d27d4eb4fu + bytes, word;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    memcpy(&word, at, 8);
    a = (a ^ word) * 0xff51afd7ed558ccdu, a ^= a >> 32;
    b = (b + word) * 0xc4ceb9fe1a85ec53u, b ^= b >> 29;
  }
  for (; bytes > 0; bytes--, at++) {
    a = (a ^ *at) * 0xff51afd7ed558ccdu, a ^= a >> 32;
    b = (b + *at) * 0xc4ceb9fe1a85ec53u, b ^= b >> 29;
  }
  digest[0] = a, digest[1] = b;
}

/* `from`, packed; NULL if memory is short. */
static go_shared_constant *go_pack(const go_constant *constant, const void *from, const int64_t *dims, size_t type) {
  go_shared_constant wanted = {0};
  size_t bytes = go_element_bytes(type);
  for (int axis = 0; axis < constant->rank; axis++) bytes *= (size_t)(wanted.dims[axis] = dims[axis]);
  wanted.pack = constant->pack;
  go_digest(from, bytes, wanted.digest);
  pthread_mutex_lock(&go_packed_lock);
  go_shared_constant *found = go_all_packed;
  while (found != NULL && (found->pack != wanted.pack || memcmp(found->dims, wanted.dims, sizeof wanted.dims) != 0 ||
                           memcmp(found->digest, wanted.digest, sizeof wanted.digest) != 0))
    found = found->next;
  if (found == NULL && (found = malloc(sizeof *found)) != NULL) {
    *found = wanted;
    found->elements = go_aligned(constant->size(dims));
    if (found->elements == NULL) {
      free(found);
      found = NULL;
    } else {
      constant->pack(from, dims, found->elements);
      found->next = go_all_packed;
      go_all_packed = found;
    }
  }
  if (found != NULL) found->uses++;
  pthread_mutex_unlock(&go_packed_lock);
  return found;
}

/* Ends one use of `packed`, which may be NULL. */
static void go_release(go_shared_constant *packed) {
  if (packed == NULL) return;
  pthread_mutex_lock(&go_packed_lock);
  if (--packed->uses == 0) {
    go_shared_constant **link = &go_all_packed;
    while (*link != packed) link = &(*link)->next;
    *link = packed->next;
    free(packed->elements);
    free(packed);
  }
  pthread_mutex_unlock(&go_packed_lock);
}

#endif
