/* Runs a bundle of graphopt (a folder with manifest.json) with onnxruntime's C API, without Python and without
   graphopt.

     cc -std=c11 -O2 host.c -I ORT/include -L ORT/lib -lonnxruntime -Wl,-rpath,ORT/lib -o host
     ./host model.gopt x=x.npy -o outputs

   To embed it, compile it with -DGOPT_NO_MAIN, and copy the section "Interface" to a header. A bundle has models for
   frequent inputs, each behind a guard, and a general model. gopt_choose returns the first whose guard holds; gopt_run
   runs it, in a session created at its first use. Use a bundle from one thread at a time. */
#define _XOPEN_SOURCE 700 /* lstat, sysconf, uname */
#define _DARWIN_C_SOURCE  /* _SC_NPROCESSORS_ONLN */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <onnxruntime_c_api.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors in files are read as little-endian"
#endif

/* ---- Interface ---------------------------------------------------------------------------------------------------
   Functions return 0 (gopt_choose: an index) on success, and -1 with one line in `error` otherwise. */

typedef struct gopt_bundle gopt_bundle;
typedef struct gopt_error {
  char text[768];
} gopt_error;

/* Opens a bundle, and checks its target and the checksums of all files. `libraries`, NULL-terminated or NULL, are the
   libraries of custom operators that the models need, besides the kernels of the bundle; they are not copied. */
int gopt_open(const char *folder, const char *const *libraries, gopt_bundle **bundle, gopt_error *error);
/* The number of inputs or outputs, and the name of each. */
size_t gopt_input_count(const gopt_bundle *bundle);
size_t gopt_output_count(const gopt_bundle *bundle);
const char *gopt_input_name(const gopt_bundle *bundle, size_t index);
const char *gopt_output_name(const gopt_bundle *bundle, size_t index);
/* The name of a variant; the last is "general". */
const char *gopt_variant_name(const gopt_bundle *bundle, int index);
/* The variant for these inputs, in the bundle's order; NULL for one that is not fed. */
int gopt_choose(gopt_bundle *bundle, const OrtValue *const *inputs, gopt_error *error);
/* Runs `variant`, the result of gopt_choose for the same inputs. The caller releases the outputs. */
int gopt_run(gopt_bundle *bundle, int variant, const OrtValue *const *inputs, OrtValue **outputs, gopt_error *error);
void gopt_close(gopt_bundle *bundle);

/* ---- Limits ----------------------------------------------------------------------------------------------------- */

enum {
  MOST_NESTING = 64,         /* of lists and objects in the manifest */
  MOST_RANK = 64,            /* dims of a tensor: numpy's limit */
  MOST_MANIFEST = 64 << 20,  /* bytes */
  MOST_NPY_HEADER = 1 << 16, /* bytes */
  FORMAT = 3,                /* version of the manifest */
  OLDEST_API = 14            /* of onnxruntime: the first with RegisterCustomOpsLibrary_V2 */
};

/* ---- Errors and memory ------------------------------------------------------------------------------------------ */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int fail(gopt_error *error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  for (char *at = error->text; *at != 0; at++) /* names are of any characters, and onnxruntime's messages have lines */
    if ((unsigned char)*at < ' ' || *at == 127) *at = ' ';
  return -1;
}

/* Memory that is released as a whole. */
typedef struct block {
  struct block *next;
  max_align_t data[];
} block;

/* The first text of an error, so that functions need not report failed allocations. */
static const gopt_error out_of_memory = {"out of memory"};

/* `count` zeroed items of `size` bytes; NULL if there is no memory. */
static void *take(block **arena, size_t count, size_t size) {
  block *made = NULL;
  if (count <= (SIZE_MAX - sizeof *made) / size) made = calloc(1, sizeof *made + count * size);
  if (made == NULL) return NULL;
  made->next = *arena;
  *arena = made;
  return made->data;
}

static void release(block **arena) {
  while (*arena != NULL) {
    block *next = (*arena)->next;
    free(*arena);
    *arena = next;
  }
}

static char *joined(block **arena, const char *folder, const char *name) {
  char *path = take(arena, strlen(folder) + strlen(name) + 2, 1);
  if (path != NULL) sprintf(path, "%s/%s", folder, name);
  return path;
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------ */

/* Reads one code point and advances `at`; -1 if the bytes before `end` are not UTF-8. */
static int32_t decode_utf8(const char **at, const char *end) {
  static const int32_t smallest[] = {0, 0x80, 0x800, 0x10000};
  const unsigned char *bytes = (const unsigned char *)*at;
  const int more = bytes[0] < 0x80 ? 0 : bytes[0] < 0xc2 ? -1 : bytes[0] < 0xe0 ? 1 : bytes[0] < 0xf0 ? 2 : 3;
  if (more < 0 || bytes[0] > 0xf4 || end - *at <= more) return -1;
  int32_t code = more == 0 ? bytes[0] : bytes[0] & (0x3f >> more);
  for (int index = 1; index <= more; index++) {
    if ((bytes[index] & 0xc0) != 0x80) return -1;
    code = code << 6 | (bytes[index] & 0x3f);
  }
  if (code < smallest[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return -1;
  *at += more + 1;
  return code;
}

/* Writes one code point, in up to 4 bytes; returns their number. */
static size_t encode_utf8(uint32_t code, char *to) {
  if (code < 0x80) return to[0] = (char)code, 1;
  const size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  for (size_t index = more; index > 0; index--, code >>= 6) to[index] = (char)(0x80 | (code & 0x3f));
  to[0] = (char)((0xff00 >> (more + 1)) | code);
  return more + 1;
}

/* ---- SHA-256 (FIPS 180-4) --------------------------------------------------------------------------------------- */

typedef struct sha256 {
  uint32_t state[8];
  uint64_t length; /* bytes */
  unsigned char buffer[64];
} sha256;

static uint32_t rotated(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static void sha256_block(sha256 *sum) {
  static const uint32_t round[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; i++) {
    const unsigned char *b = sum->buffer + 4 * i;
    w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
  }
  for (int i = 16; i < 64; i++)
    w[i] = w[i - 16] + w[i - 7] + (rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3) +
           (rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10);
  memcpy(s, sum->state, sizeof s);
  for (int i = 0; i < 64; i++) {
    const uint32_t a = s[-i & 7], b = s[(1 - i) & 7], c = s[(2 - i) & 7]; /* the words rotate in place */
    const uint32_t e = s[(4 - i) & 7], f = s[(5 - i) & 7], g = s[(6 - i) & 7];
    const uint32_t one =
        s[(7 - i) & 7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + round[i] + w[i];
    s[(3 - i) & 7] += one;
    s[(7 - i) & 7] = one + (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
  }
  for (int i = 0; i < 8; i++) sum->state[i] += s[i];
}

static void sha256_start(sha256 *sum) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(sum->state, first, sizeof first);
  sum->length = 0;
}

static void sha256_add(sha256 *sum, const void *data, size_t length) {
  const unsigned char *from = data;
  while (length > 0) {
    const size_t used = sum->length % 64, part = length < 64 - used ? length : 64 - used;
    memcpy(sum->buffer + used, from, part);
    sum->length += part, from += part, length -= part;
    if (sum->length % 64 == 0) sha256_block(sum);
  }
}

static void sha256_hex(sha256 *sum, char hex[65]) {
  const uint64_t bits = sum->length * 8;
  sha256_add(sum, "\x80", 1);
  while (sum->length % 64 != 56) sha256_add(sum, "", 1);
  for (int shift = 56; shift >= 0; shift -= 8) sha256_add(sum, &(unsigned char){(unsigned char)(bits >> shift)}, 1);
  for (int i = 0; i < 8; i++) sprintf(hex + 8 * i, "%08" PRIx32, sum->state[i]);
}

/* ---- JSON (RFC 8259), strict: UTF-8, no duplicate keys, no NUL in strings --------------------------------------- */

typedef enum { J_NULL, J_FALSE, J_TRUE, J_NUMBER, J_STRING, J_LIST, J_OBJECT } json_kind;

typedef struct json {
  json_kind kind;
  const char *key;     /* in an object */
  const char *text;    /* of a string; of a number, as written */
  size_t count;        /* of items */
  struct json **items; /* of a list; of an object, in the order of the keys */
  struct json *next;   /* while the list is read */
} json;

typedef struct reader {
  const char *start, *at, *end;
  block **arena;
  gopt_error *error;
} reader;

static void *bad(reader *from, const char *reason) {
  fail(from->error, "malformed JSON at byte %td: %s", from->at - from->start, reason);
  return NULL;
}

static void skip_space(reader *from) {
  while (from->at < from->end && memchr(" \t\r\n", *from->at, 4) != NULL) from->at++;
}

static bool skip(reader *from, const char *word) {
  const size_t length = strlen(word);
  if ((size_t)(from->end - from->at) < length || memcmp(from->at, word, length) != 0) return false;
  from->at += length;
  return true;
}

static size_t skip_digits(reader *from) {
  const char *begin = from->at;
  while (from->at < from->end && *from->at >= '0' && *from->at <= '9') from->at++;
  return (size_t)(from->at - begin);
}

static int32_t read_hex4(reader *from) {
  int32_t code = 0;
  for (int i = 0; i < 4; i++, from->at++) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *digit = from->at < from->end ? memchr(digits, *from->at, 32) : NULL;
    if (digit == NULL) return -1;
    code = code << 4 | (int32_t)((digit - digits) % 16);
  }
  return code;
}

static const char *read_string(reader *from) {
  if (!skip(from, "\"")) return bad(from, "no string");
  const char *end = from->at; /* of the raw text, which is never shorter than the decoded text */
  while (end < from->end && *end != '"') end += *end == '\\' ? 2 : 1;
  if (end >= from->end) return bad(from, "unterminated string");
  char *text = take(from->arena, (size_t)(end - from->at) + 1, 1), *to = text;
  if (text == NULL) return NULL;
  while (from->at < end) {
    int32_t code = decode_utf8(&from->at, end);
    if (code < ' ') return bad(from, code < 0 ? "not UTF-8" : "control character in a string");
    if (code == '\\') {
      static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
      const char *found = memchr(escapes, *from->at, 8);
      if (*from->at == 'u') {
        from->at++;
        code = read_hex4(from);
        if (code >= 0xd800 && code < 0xdc00) { /* the first of a surrogate pair */
          const int32_t low = skip(from, "\\u") ? read_hex4(from) : -1;
          code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
        }
        if (code <= 0 || (code >= 0xd800 && code < 0xe000)) return bad(from, "unsupported escape");
      } else {
        if (found == NULL) return bad(from, "unknown escape");
        code = meanings[found - escapes];
        from->at++;
      }
    }
    to += encode_utf8((uint32_t)code, to);
  }
  from->at = end + 1;
  return text;
}

static bool read_number(reader *from, json *item) {
  const char *begin = from->at;
  skip(from, "-");
  if (!skip(from, "0") && skip_digits(from) == 0) return bad(from, "no value"), false;
  if (skip(from, ".") && skip_digits(from) == 0) return bad(from, "no digits"), false;
  if (skip(from, "e") || skip(from, "E")) {
    if (!skip(from, "+")) skip(from, "-");
    if (skip_digits(from) == 0) return bad(from, "no digits"), false;
  }
  const size_t length = (size_t)(from->at - begin);
  char *text = take(from->arena, length + 1, 1);
  if (text != NULL) memcpy(text, begin, length);
  item->kind = J_NUMBER, item->text = text;
  return text != NULL;
}

static int compare_keys(const void *one, const void *other) {
  return strcmp((*(const json *const *)one)->key, (*(const json *const *)other)->key);
}

static json *read_value(reader *from, int depth) {
  json *item = take(from->arena, 1, sizeof *item), *first = NULL, **last = &first;
  if (item == NULL) return NULL;
  skip_space(from);
  if (skip(from, "null")) return item;
  if (skip(from, "false")) return item->kind = J_FALSE, item;
  if (skip(from, "true")) return item->kind = J_TRUE, item;
  if (from->at < from->end && *from->at == '"') {
    item->kind = J_STRING, item->text = read_string(from);
    return item->text == NULL ? NULL : item;
  }
  if (skip(from, "{")) item->kind = J_OBJECT;
  else if (skip(from, "[")) item->kind = J_LIST;
  else return read_number(from, item) ? item : NULL;
  if (depth == MOST_NESTING) return bad(from, "nested too deeply");
  const char *closing = item->kind == J_OBJECT ? "}" : "]";
  skip_space(from);
  if (skip(from, closing)) return item;
  do {
    const char *key = NULL;
    if (item->kind == J_OBJECT) {
      skip_space(from);
      if ((key = read_string(from)) == NULL) return NULL;
      skip_space(from);
      if (!skip(from, ":")) return bad(from, "no colon");
    }
    if ((*last = read_value(from, depth + 1)) == NULL) return NULL;
    (*last)->key = key;
    last = &(*last)->next;
    item->count++;
    skip_space(from);
  } while (skip(from, ","));
  if (!skip(from, closing)) return bad(from, "no comma or end");
  item->items = take(from->arena, item->count, sizeof *item->items);
  if (item->items == NULL) return NULL;
  for (size_t index = 0; index < item->count; index++, first = first->next) item->items[index] = first;
  if (item->kind == J_OBJECT) {
    qsort(item->items, item->count, sizeof *item->items, compare_keys);
    for (size_t index = 1; index < item->count; index++)
      if (strcmp(item->items[index - 1]->key, item->items[index]->key) == 0) return bad(from, "duplicate key");
  }
  return item;
}

static json *read_json(const char *text, size_t length, block **arena, gopt_error *error) {
  reader from = {text, text, text + length, arena, error};
  json *found = read_value(&from, 0);
  skip_space(&from);
  if (found != NULL && from.at != from.end) return bad(&from, "text after the end");
  return found;
}

/* The entry of an object; NULL if it is missing, or null. */
static const json *find(const json *object, const char *key) {
  for (size_t index = 0; object != NULL && object->kind == J_OBJECT && index < object->count; index++)
    if (strcmp(object->items[index]->key, key) == 0)
      return object->items[index]->kind == J_NULL ? NULL : object->items[index];
  return NULL;
}

/* The text of an entry; NULL if it is missing, or not a string. */
static const char *find_text(const json *object, const char *key) {
  const json *item = find(object, key);
  return item != NULL && item->kind == J_STRING ? item->text : NULL;
}

static const json *find_list(const json *object, const char *key) {
  const json *item = find(object, key);
  return item != NULL && item->kind == J_LIST ? item : NULL;
}

static bool is_integer(const json *item, int64_t *value) {
  if (item == NULL || item->kind != J_NUMBER || strpbrk(item->text, ".eE") != NULL) return false;
  errno = 0;
  *value = strtoll(item->text, NULL, 10);
  return errno == 0;
}

static void sha256_string(sha256 *sum, const char *text) {
  sha256_add(sum, "\"", 1);
  for (const char *end = text + strlen(text); text < end;) {
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    char made[16];
    uint32_t code = (uint32_t)decode_utf8(&text, end);
    const char *found = code < 127 ? memchr(special, (int)code, 7) : NULL;
    if (found != NULL) sprintf(made, "\\%c", letters[found - special]);
    else if (code >= ' ' && code < 127) sprintf(made, "%c", (int)code);
    else if (code < 0x10000) sprintf(made, "\\u%04x", code & 0xffff);
    else sprintf(made, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10 & 0x3ff), 0xdc00 + (code & 0x3ff));
    sha256_add(sum, made, strlen(made));
  }
  sha256_add(sum, "\"", 1);
}

/* Adds an item in canonical form: sorted keys, no spaces, ASCII; without the entry `omitted`. */
static void sha256_json(sha256 *sum, const json *item, const char *omitted) {
  static const char *const constants[] = {"null", "false", "true"};
  if (item->kind <= J_TRUE) sha256_add(sum, constants[item->kind], strlen(constants[item->kind]));
  else if (item->kind == J_NUMBER) sha256_add(sum, item->text, strlen(item->text));
  else if (item->kind == J_STRING) sha256_string(sum, item->text);
  else {
    bool is_first = true;
    sha256_add(sum, item->kind == J_LIST ? "[" : "{", 1);
    for (size_t index = 0; index < item->count; index++) {
      const json *part = item->items[index];
      if (omitted != NULL && strcmp(part->key, omitted) == 0) continue;
      if (!is_first) sha256_add(sum, ",", 1);
      is_first = false;
      if (item->kind == J_OBJECT) sha256_string(sum, part->key), sha256_add(sum, ":", 1);
      sha256_json(sum, part, NULL);
    }
    sha256_add(sum, item->kind == J_LIST ? "]" : "}", 1);
  }
}

/* ---- Element types ---------------------------------------------------------------------------------------------- */

/* `number` is onnxruntime's ONNXTensorElementDataType; older headers lack the last ones; `descr` is numpy's,
   without the byte order. numpy has no such type for V1 and V2: its files contain the bits, of types of fewer than 8
   bits one element a byte. */
typedef struct element {
  const char *name, *descr;
  int number, bits;
} element;

static const element elements[] = {
    {"float", "f4", 1, 32},      {"uint8", "u1", 2, 8},           {"int8", "i1", 3, 8},
    {"uint16", "u2", 4, 16},     {"int16", "i2", 5, 16},          {"int32", "i4", 6, 32},
    {"int64", "i8", 7, 64},      {"string", "U", 8, 0},           {"bool", "b1", 9, 8},
    {"float16", "f2", 10, 16},   {"double", "f8", 11, 64},        {"uint32", "u4", 12, 32},
    {"uint64", "u8", 13, 64},    {"complex64", "c8", 14, 64},     {"complex128", "c16", 15, 128},
    {"bfloat16", "V2", 16, 16},  {"float8e4m3fn", "V1", 17, 8},   {"float8e4m3fnuz", "V1", 18, 8},
    {"float8e5m2", "V1", 19, 8}, {"float8e5m2fnuz", "V1", 20, 8}, {"uint4", "V1", 21, 4},
    {"int4", "V1", 22, 4},       {"float4e2m1", "V1", 23, 4},     {"uint2", "V1", 24, 2},
    {"int2", "V1", 25, 2},       {"float8e8m0", "V1", 26, 8},
};
enum { STRING = 8, COUNT_OF_ELEMENTS = sizeof elements / sizeof *elements };

/* The element type of "tensor(NAME)"; NULL for other types. */
static const element *tensor_of(const char *type) {
  const size_t length = strlen(type);
  for (int index = 0; index < COUNT_OF_ELEMENTS && length > 8; index++) {
    const char *name = elements[index].name;
    if (strncmp(type, "tensor(", 7) == 0 && strlen(name) == length - 8 && type[length - 1] == ')' &&
        strncmp(type + 7, name, length - 8) == 0)
      return &elements[index];
  }
  return NULL;
}

/* An element of integers or booleans, `elements` of `type`; false if it does not fit into int64, or is no integer. */
static bool integer_at(const void *values, const element *type, size_t index, int64_t *found) {
  const char *at = (const char *)values + index * (size_t)type->bits / 8;
  const bool has_sign = type->name[0] == 'i';
  uint64_t bits = 0;
  if (type->bits == 0 || type->bits > 64 || (strchr("iub", type->descr[0]) == NULL && type->bits >= 8)) return false;
  memcpy(&bits, at, type->bits < 8 ? 1 : (size_t)type->bits / 8); /* little-endian */
  if (type->bits < 8)
    bits = bits >> index % (8u / (unsigned)type->bits) * (unsigned)type->bits & ((1u << type->bits) - 1);
  if (type->descr[0] == 'b') bits = bits != 0;
  if (has_sign && type->bits < 64 && bits >> (type->bits - 1) != 0) bits |= UINT64_MAX << type->bits;
  if (!has_sign && bits > INT64_MAX) return false;
  memcpy(found, &bits, sizeof bits);
  return true;
}

/* ---- The bundle ------------------------------------------------------------------------------------------------- */

typedef struct listed { /* a file */
  const char *name, *path;
} listed;

typedef enum { REQUIRED, OVERRIDABLE, CONSTANT } port_role;

typedef struct port { /* an input or output */
  const char *name, *type;
  port_role role;
} port;

typedef struct assumption { /* of a guard about one input */
  const char *name;
  size_t input;        /* its index; the number of inputs for an unknown one, which is never fed */
  const element *type; /* NULL for any */
  bool has_shape, is_always_fed;
  size_t rank, int_count;
  int64_t *dims, *ints; /* a dim is a size, ANY_SIZE, or the index s of a symbol as FIRST_SYMBOL - s */
} assumption;
enum { ANY_SIZE = -1, FIRST_SYMBOL = -2 };

typedef struct variant {
  const char *name, *session_options;
  listed *file;
  bool is_native; /* has groups of nodes for which the library of kernels has operators */
  size_t assumption_count, absent_count, symbol_count;
  assumption *assumptions;
  size_t *absent; /* indices of inputs */
  int64_t *sizes; /* by symbol, while the guard is checked */
  OrtSession *session;
  bool *reads; /* by input: whether the session has it */
} variant;

typedef struct fact { /* an input, as it is fed */
  bool is_known, is_tensor;
  int type;
  size_t rank;
  int64_t dims[MOST_RANK];
} fact;

struct gopt_bundle {
  block *arena;
  const char *folder, *onnxruntime; /* the version of onnxruntime that wrote the bundle; NULL if unknown */
  const char *const *libraries;
  const OrtApi *api;
  OrtEnv *env;
  size_t input_count, output_count, variant_count, file_count;
  port *inputs, *outputs;
  variant *variants; /* the general model last */
  listed *files, *kernels;
  fact *facts; /* by input, while guards are checked */
};

static int malformed(gopt_error *error, const char *entry) {
  return fail(error, "malformed manifest.json: %s missing or malformed", entry);
}

/* Calls a function of `api`: 0, or -1 with onnxruntime's message after `doing` in `error`. */
#define ORT(call, doing) succeeded(api, api->call, error, doing)

static int succeeded(const OrtApi *api, OrtStatus *status, gopt_error *error, const char *doing) {
  if (status == NULL) return 0;
  fail(error, "onnxruntime failed %s: %s", doing, api->GetErrorMessage(status));
  api->ReleaseStatus(status);
  return -1;
}

/* ---- Files of the bundle ---------------------------------------------------------------------------------------- */

static listed *find_file(const gopt_bundle *bundle, const char *name) {
  for (size_t index = 0; name != NULL && index < bundle->file_count; index++)
    if (strcmp(bundle->files[index].name, name) == 0) return &bundle->files[index];
  return NULL;
}

/* Sets the path of a file, and compares its size and its contents with the entry of the manifest. */
static int check_file(gopt_bundle *bundle, listed *file, const json *entry, gopt_error *error) {
  const char *expected = find_text(entry, "sha256");
  int64_t bytes;
  struct stat found;
  if (!is_integer(find(entry, "bytes"), &bytes) || expected == NULL) return malformed(error, file->name);
  if (strpbrk(file->name, "/\\:") != NULL || file->name[0] == 0 || strcmp(file->name, "..") == 0)
    return fail(error, "file outside of the bundle: '%s'", file->name);
  if ((file->path = joined(&bundle->arena, bundle->folder, file->name)) == NULL) return -1;
  if (lstat(file->path, &found) != 0)
    return fail(error, "the bundle %s lacks %s: %s", bundle->folder, file->name, strerror(errno));
  if (!S_ISREG(found.st_mode)) /* a link may lead out of the folder */
    return fail(error, "the bundle is damaged: %s is a link, or not a file", file->path);
  FILE *stream = fopen(file->path, "rb");
  if (stream == NULL) return fail(error, "can't read %s: %s", file->path, strerror(errno));
  sha256 sum;
  char part[1 << 14], hex[65];
  sha256_start(&sum);
  for (size_t length; (length = fread(part, 1, sizeof part, stream)) > 0;) sha256_add(&sum, part, length);
  const bool is_read = !ferror(stream), has_size = sum.length == (uint64_t)bytes;
  fclose(stream);
  if (!is_read) return fail(error, "can't read %s", file->path);
  sha256_hex(&sum, hex);
  if (!has_size || strcmp(hex, expected) != 0)
    return fail(error, "the bundle is damaged: %s does not match its checksum", file->path);
  return 0;
}

static json *read_manifest(gopt_bundle *bundle, gopt_error *error) {
  const char *path = joined(&bundle->arena, bundle->folder, "manifest.json");
  if (path == NULL) return NULL;
  FILE *stream = fopen(path, "rb");
  if (stream == NULL) {
    fail(error, "%s is not a bundle: can't read manifest.json: %s", bundle->folder, strerror(errno));
    return NULL;
  }
  struct stat found;
  char *text = NULL;
  size_t length = 0;
  if (lstat(path, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size > MOST_MANIFEST)
    fail(error, "%s is a link, not a file, or longer than %d bytes", path, MOST_MANIFEST);
  else if ((text = take(&bundle->arena, (size_t)found.st_size + 1, 1)) != NULL)
    length = fread(text, 1, (size_t)found.st_size, stream);
  fclose(stream);
  if (text == NULL) return NULL;
  gopt_error reason = out_of_memory;
  json *manifest = read_json(text, length, &bundle->arena, &reason);
  if (manifest == NULL) fail(error, "%s: %.500s", path, reason.text);
  return manifest;
}

/* ---- The manifest ----------------------------------------------------------------------------------------------- */

static int check_format(const json *manifest, gopt_error *error) {
  int64_t version;
  if (manifest->kind != J_OBJECT || !is_integer(find(manifest, "graphopt_bundle"), &version))
    return fail(error, "manifest.json is not that of a bundle");
  if (version != FORMAT)
    return fail(error, "manifest.json has format %" PRId64 ", this program reads format %d", version, FORMAT);
  const char *checksum = find_text(manifest, "checksum");
  sha256 sum;
  char hex[65];
  sha256_start(&sum);
  sha256_json(&sum, manifest, "checksum");
  sha256_hex(&sum, hex);
  if (checksum == NULL || strcmp(checksum, hex) != 0)
    return fail(error, "the bundle is damaged: manifest.json does not match its checksum");
  return 0;
}

static int read_files(gopt_bundle *bundle, const json *manifest, gopt_error *error) {
  const json *files = find(manifest, "files");
  if (files == NULL || files->kind != J_OBJECT) return malformed(error, "files");
  bundle->files = take(&bundle->arena, files->count, sizeof *bundle->files);
  if (bundle->files == NULL) return -1;
  for (size_t index = 0; index < files->count; index++) {
    listed *file = &bundle->files[bundle->file_count++];
    file->name = files->items[index]->key;
    if (check_file(bundle, file, files->items[index], error) != 0) return -1;
  }
  const char *weights = find_text(manifest, "weights");
  return weights != NULL && find_file(bundle, weights) == NULL ? malformed(error, "weights") : 0;
}

static int read_ports(gopt_bundle *bundle, const json *list, port **ports, size_t *count, gopt_error *error) {
  if (list == NULL) return malformed(error, "inputs or outputs");
  if ((*ports = take(&bundle->arena, list->count, sizeof **ports)) == NULL) return -1;
  for (size_t index = 0; index < list->count; index++) {
    port *found = &(*ports)[(*count)++];
    found->name = find_text(list->items[index], "name");
    found->type = find_text(list->items[index], "type");
    const char *role = find_text(list->items[index], "role");
    if (role == NULL) role = "required";
    if (found->name == NULL || found->type == NULL) return malformed(error, "name or type of an input or output");
    found->role = strcmp(role, "required") == 0 ? REQUIRED : strcmp(role, "overridable") == 0 ? OVERRIDABLE : CONSTANT;
    if (found->role == CONSTANT && strcmp(role, "constant") != 0) return malformed(error, "role of an input");
    for (size_t other = 0; other < index; other++)
      if (strcmp((*ports)[other].name, found->name) == 0) return malformed(error, "unique names of inputs or outputs");
  }
  return 0;
}

static size_t find_input(const gopt_bundle *bundle, const char *name) {
  size_t index = 0;
  while (index < bundle->input_count && strcmp(bundle->inputs[index].name, name) != 0) index++;
  return index;
}

static bool is_anonymous(const char *symbol) {
  static const char *const symbols[] = {"", "?", "*", "-1", "None"};
  for (size_t index = 0; index < sizeof symbols / sizeof *symbols; index++)
    if (strcmp(symbol, symbols[index]) == 0) return true;
  return false;
}

/* Reads the assumptions about one input; `symbols` are those of the guard so far. */
static int read_assumption(gopt_bundle *bundle, const json *item, variant *owner, const char **symbols,
                           assumption *found, gopt_error *error) {
  const char *type = find_text(item, "type");
  const json *shape = find_list(item, "shape"), *ints = find_list(item, "ints"), *always = find(item, "always");
  found->name = item->key;
  found->input = find_input(bundle, item->key);
  found->is_always_fed = always == NULL || always->kind == J_TRUE;
  if (type == NULL || (find(item, "shape") != NULL && shape == NULL) || (find(item, "ints") != NULL && ints == NULL) ||
      (always != NULL && always->kind != J_TRUE && always->kind != J_FALSE))
    return malformed(error, "type, shape, contents or presence of an input in a guard");
  found->type = tensor_of(type);
  if (found->type == NULL && strncmp(type, "tensor(", 7) == 0) return malformed(error, "type of an input in a guard");
  size_t elements_expected = 1;
  if (shape != NULL) {
    found->has_shape = true;
    found->dims = take(&bundle->arena, shape->count, sizeof *found->dims);
    if (found->dims == NULL) return -1;
    for (size_t axis = 0; axis < shape->count; axis++) {
      const json *dim = shape->items[axis];
      int64_t size = ANY_SIZE;
      if (dim->kind == J_STRING && !is_anonymous(dim->text)) {
        size_t symbol = 0;
        while (symbol < owner->symbol_count && strcmp(symbols[symbol], dim->text) != 0) symbol++;
        if (symbol == owner->symbol_count) symbols[owner->symbol_count++] = dim->text;
        size = FIRST_SYMBOL - (int64_t)symbol;
      } else if (dim->kind != J_STRING && (!is_integer(dim, &size) || size < 0)) {
        return malformed(error, "dim in a guard");
      }
      if (size < 0 && ints != NULL) return malformed(error, "contents of an input in a guard");
      elements_expected *= (size_t)size; /* an overflow is harmless, because tensors are compared with all dims first */
      found->dims[found->rank++] = size;
    }
  }
  if (ints == NULL) return 0;
  if (shape == NULL || ints->count != elements_expected || found->type == NULL || found->type->number == STRING)
    return malformed(error, "contents of an input in a guard");
  found->ints = take(&bundle->arena, ints->count, sizeof *found->ints);
  if (found->ints == NULL) return -1;
  for (; found->int_count < ints->count; found->int_count++)
    if (!is_integer(ints->items[found->int_count], &found->ints[found->int_count]))
      return malformed(error, "contents of an input in a guard");
  return 0;
}

static int read_guard(gopt_bundle *bundle, const json *guard, variant *found, gopt_error *error) {
  const json *inputs = find(guard, "inputs"), *absent = find_list(guard, "absent");
  if (inputs == NULL || inputs->kind != J_OBJECT) return malformed(error, "guard");
  size_t dims = 0;
  for (size_t index = 0; index < inputs->count; index++) {
    const json *shape = find_list(inputs->items[index], "shape");
    dims += shape == NULL ? 0 : shape->count;
  }
  const char **symbols = take(&bundle->arena, dims, sizeof *symbols);
  int64_t *sizes = take(&bundle->arena, dims, sizeof *sizes);
  found->assumptions = take(&bundle->arena, inputs->count, sizeof *found->assumptions);
  found->absent = take(&bundle->arena, absent == NULL ? 0 : absent->count, sizeof *found->absent);
  if (symbols == NULL || sizes == NULL || found->assumptions == NULL || found->absent == NULL) return -1;
  for (size_t index = 0; index < inputs->count; index++) {
    assumption *one = &found->assumptions[found->assumption_count++];
    if (read_assumption(bundle, inputs->items[index], found, symbols, one, error) != 0) return -1;
  }
  for (size_t index = 0; absent != NULL && index < absent->count; index++) {
    const json *name = absent->items[index];
    if (name->kind != J_STRING) return malformed(error, "absent inputs of a guard");
    found->absent[found->absent_count++] = find_input(bundle, name->text);
  }
  found->sizes = sizes;
  return 0;
}

static int read_variants(gopt_bundle *bundle, const json *manifest, gopt_error *error) {
  const json *variants = find_list(manifest, "variants"), *native = find_list(manifest, "native");
  if (variants == NULL || variants->count >= INT_MAX) return malformed(error, "variants");
  bundle->variants = take(&bundle->arena, variants->count + 1, sizeof *bundle->variants);
  if (bundle->variants == NULL) return -1;
  for (size_t index = 0; index <= variants->count; index++) {
    const bool is_general = index == variants->count;
    const json *item = is_general ? find(manifest, "general") : variants->items[index];
    variant *found = &bundle->variants[bundle->variant_count++];
    found->name = is_general ? "general" : find_text(item, "name");
    found->file = find_file(bundle, find_text(item, "file"));
    found->session_options = find_text(is_general ? manifest : item, "session_options");
    if (found->session_options == NULL || found->session_options[0] == 0)
      found->session_options = find_text(manifest, "session_options");
    found->reads = take(&bundle->arena, bundle->input_count, sizeof *found->reads);
    if (found->reads == NULL) return -1;
    if (found->name == NULL || found->file == NULL) return malformed(error, "name or file of a variant");
    for (size_t other = 0; native != NULL && other < native->count; other++) {
      const char *name = native->items[other]->text;
      if (native->items[other]->kind == J_STRING && strcmp(name, found->name) == 0) found->is_native = true;
    }
    if (!is_general && read_guard(bundle, find(item, "guard"), found, error) != 0) return -1;
  }
  return 0;
}

/* ---- The target ------------------------------------------------------------------------------------------------- */

static bool is_same_machine(const char *one, const char *other) {
  const bool is_arm = strcmp(one, "arm64") == 0 || strcmp(one, "aarch64") == 0;
  return strcmp(one, other) == 0 || (is_arm && (strcmp(other, "arm64") == 0 || strcmp(other, "aarch64") == 0));
}

/* The level of this processor in the System V ABI for x86-64: 1 to 4 for x86-64, -v2, -v3, -v4; 0 for other machines.
 */
static int cpu_level(void) {
#if defined(__x86_64__)
  unsigned a, b, c1, d, b7, c7, c81 = 0, saved = 0;
  if (!__get_cpuid(1, &a, &b, &c1, &d) || !__get_cpuid(0x80000001, &a, &b, &c81, &d)) return 1;
  const unsigned two = bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT | bit_CMPXCHG16B;
  if ((c1 & two) != two || (c81 & bit_LAHF_LM) == 0) return 1;
  const unsigned three = bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_OSXSAVE;
  if ((c1 & three) != three || (c81 & bit_LZCNT) == 0) return 2;
  __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0)); /* the registers that the operating system saves */
  const unsigned three7 = bit_AVX2 | bit_BMI | bit_BMI2;
  if ((saved & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || (b7 & three7) != three7) return 2;
  const unsigned four7 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  return (b7 & four7) == four7 && (saved & 0xe6) == 0xe6 ? 4 : 3;
#else
  return 0;
#endif
}

/* Checks that the bundle is for this machine, and selects the library of kernels with the highest level. */
static int read_target(gopt_bundle *bundle, const json *manifest, gopt_error *error) {
  struct utsname here;
  if (uname(&here) < 0) return fail(error, "can't determine the machine: %s", strerror(errno));
  for (char *at = here.sysname; *at != 0; at++) *at |= *at >= 'A' && *at <= 'Z' ? 'a' - 'A' : 0;
  const json *target = find(manifest, "target"), *kernels = find_list(manifest, "kernels");
  const char *device = find_text(target, "device"), *system = find_text(target, "system");
  const char *machine = find_text(target, "machine");
  if (device != NULL && strcmp(device, "cpu") != 0)
    return fail(error, "the bundle is for the device %s, this program runs on the CPU", device);
  if (system != NULL && strcmp(system, here.sysname) != 0)
    return fail(error, "the bundle is for the system %s, this is %s", system, here.sysname);
  if (machine != NULL && !is_same_machine(machine, here.machine))
    return fail(error, "the bundle is for the machine %s, this is %s", machine, here.machine);
  const json *domains = find_list(find(manifest, "operators"), "libraries");
  if (domains != NULL && domains->count > 0 && (bundle->libraries == NULL || bundle->libraries[0] == NULL))
    return fail(error, "the models need a library with the operators of the domain '%s'",
                domains->items[0]->kind == J_STRING ? domains->items[0]->text : "");
  const int level = cpu_level();
  int64_t best = -1, lowest = INT64_MAX;
  for (size_t index = 0; kernels != NULL && index < kernels->count; index++) {
    const json *item = kernels->items[index];
    const char *for_device = find_text(item, "device"), *for_machine = find_text(item, "machine");
    listed *file = find_file(bundle, find_text(item, "file"));
    int64_t needed = 0;
    if (file == NULL || (find(item, "cpu_level") != NULL && !is_integer(find(item, "cpu_level"), &needed)))
      return malformed(error, "kernels");
    if (for_device != NULL && strcmp(for_device, "cpu") != 0) continue;
    if (for_machine != NULL && !is_same_machine(for_machine, here.machine)) continue;
    lowest = needed < lowest ? needed : lowest;
    if (needed <= level && needed > best) best = needed, bundle->kernels = file;
  }
  if (bundle->kernels == NULL && lowest != INT64_MAX)
    return fail(error, "the kernels of the bundle need x86-64-v%" PRId64 ", this processor has x86-64-v%d", lowest,
                level);
  return 0;
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

static int open_runtime(gopt_bundle *bundle, const json *manifest, gopt_error *error) {
  const OrtApiBase *base = OrtGetApiBase();
  bundle->onnxruntime = find_text(find(manifest, "versions"), "onnxruntime");
  const OrtApi *api = bundle->api = base->GetApi(OLDEST_API);
  if (api == NULL)
    return fail(error, "onnxruntime %s is too old, 1.%d is needed", base->GetVersionString(), OLDEST_API);
  /* fatal: errors are reported by functions, and not logged a second time */
  return ORT(CreateEnv(ORT_LOGGING_LEVEL_FATAL, "gopt", &bundle->env), "to start");
}

int gopt_open(const char *folder, const char *const *libraries, gopt_bundle **result, gopt_error *error) {
  struct stat found;
  *error = out_of_memory;
  if (stat(folder, &found) != 0) return fail(error, "can't open the bundle %s: %s", folder, strerror(errno));
  if (!S_ISDIR(found.st_mode)) return fail(error, "%s is not a folder; unpack a zipped bundle with unzip", folder);
  gopt_bundle *bundle = calloc(1, sizeof *bundle);
  if (bundle == NULL) return -1;
  char *copy = take(&bundle->arena, strlen(folder) + 1, 1);
  bundle->folder = copy == NULL ? NULL : strcpy(copy, folder);
  bundle->libraries = libraries;
  const json *manifest = copy == NULL ? NULL : read_manifest(bundle, error);
  if (manifest == NULL || check_format(manifest, error) != 0 || read_files(bundle, manifest, error) != 0 ||
      read_ports(bundle, find_list(manifest, "inputs"), &bundle->inputs, &bundle->input_count, error) != 0 ||
      read_ports(bundle, find_list(manifest, "outputs"), &bundle->outputs, &bundle->output_count, error) != 0 ||
      read_variants(bundle, manifest, error) != 0 || read_target(bundle, manifest, error) != 0 ||
      (bundle->facts = take(&bundle->arena, bundle->input_count, sizeof *bundle->facts)) == NULL ||
      open_runtime(bundle, manifest, error) != 0) {
    gopt_close(bundle);
    return -1;
  }
  *result = bundle;
  return 0;
}

void gopt_close(gopt_bundle *bundle) {
  if (bundle == NULL) return;
  for (size_t index = 0; index < bundle->variant_count; index++)
    if (bundle->variants[index].session != NULL) bundle->api->ReleaseSession(bundle->variants[index].session);
  if (bundle->env != NULL) bundle->api->ReleaseEnv(bundle->env);
  release(&bundle->arena);
  free(bundle);
}

size_t gopt_input_count(const gopt_bundle *bundle) { return bundle->input_count; }
size_t gopt_output_count(const gopt_bundle *bundle) { return bundle->output_count; }
const char *gopt_input_name(const gopt_bundle *bundle, size_t index) { return bundle->inputs[index].name; }
const char *gopt_output_name(const gopt_bundle *bundle, size_t index) { return bundle->outputs[index].name; }
const char *gopt_variant_name(const gopt_bundle *bundle, int index) { return bundle->variants[index].name; }

/* ---- Guards ----------------------------------------------------------------------------------------------------- */

/* The type and the dims of a tensor, or of another value. */
static int examine(const OrtApi *api, const OrtValue *value, fact *found, gopt_error *error) {
  OrtTensorTypeAndShapeInfo *info = NULL;
  ONNXTensorElementDataType type;
  int is_tensor = 0;
  found->is_known = true;
  if (ORT(IsTensor(value, &is_tensor), "to examine a value") != 0) return -1;
  found->is_tensor = is_tensor != 0;
  if (!found->is_tensor) return 0;
  int status = ORT(GetTensorTypeAndShape(value, &info), "to examine a tensor");
  if (status == 0) status = ORT(GetTensorElementType(info, &type), "to examine a tensor");
  if (status == 0) status = ORT(GetDimensionsCount(info, &found->rank), "to examine a tensor");
  if (status == 0 && found->rank > MOST_RANK) status = fail(error, "a tensor has %zu dims", found->rank);
  if (status == 0) status = ORT(GetDimensions(info, found->dims, found->rank), "to examine a tensor");
  if (info != NULL) api->ReleaseTensorTypeAndShapeInfo(info);
  found->type = status == 0 ? (int)type : 0;
  return status;
}

/* 1 if a value satisfies the assumptions about it, 0 if not, -1 on an error. */
static int satisfies(gopt_bundle *bundle, const variant *owner, const assumption *wanted, const OrtValue *value,
                     gopt_error *error) {
  fact *found = &bundle->facts[wanted->input];
  if (!found->is_known && examine(bundle->api, value, found, error) != 0) return -1;
  if (!found->is_tensor) return !wanted->has_shape;
  if (wanted->type != NULL && found->type != wanted->type->number) return 0;
  if (!wanted->has_shape) return 1;
  if (found->rank != wanted->rank) return 0;
  for (size_t axis = 0; axis < wanted->rank; axis++) {
    const int64_t dim = wanted->dims[axis], size = found->dims[axis];
    if (dim >= 0 && size != dim) return 0;
    if (dim > FIRST_SYMBOL) continue;
    int64_t *known = &owner->sizes[FIRST_SYMBOL - dim]; /* -1 until the first dim with this symbol */
    if (*known >= 0 && *known != size) return 0;
    *known = size;
  }
  if (wanted->int_count == 0) return 1;
  void *data = NULL;
  OrtStatus *status = bundle->api->GetTensorMutableData((OrtValue *)value, &data); /* is not written */
  if (succeeded(bundle->api, status, error, "to read a tensor") != 0) return -1;
  for (size_t index = 0; index < wanted->int_count; index++) {
    int64_t item;
    if (!integer_at(data, wanted->type, index, &item) || item != wanted->ints[index]) return 0;
  }
  return 1;
}

static int holds(gopt_bundle *bundle, const variant *guarded, const OrtValue *const *inputs, gopt_error *error) {
  for (size_t index = 0; index < guarded->symbol_count; index++) guarded->sizes[index] = -1;
  for (size_t index = 0; index < guarded->absent_count; index++) {
    const size_t input = guarded->absent[index];
    if (input < bundle->input_count && inputs[input] != NULL) return 0;
  }
  for (size_t index = 0; index < guarded->assumption_count; index++) {
    const assumption *wanted = &guarded->assumptions[index];
    const OrtValue *value = wanted->input < bundle->input_count ? inputs[wanted->input] : NULL;
    if (value == NULL && wanted->is_always_fed) return 0;
    const int found = value == NULL ? 1 : satisfies(bundle, guarded, wanted, value, error);
    if (found != 1) return found;
  }
  return 1;
}

int gopt_choose(gopt_bundle *bundle, const OrtValue *const *inputs, gopt_error *error) {
  const int general = (int)bundle->variant_count - 1;
  *error = out_of_memory;
  for (size_t index = 0; index < bundle->input_count; index++) bundle->facts[index].is_known = false;
  for (int index = 0; index < general; index++) {
    const int found = holds(bundle, &bundle->variants[index], inputs, error);
    if (found != 0) return found < 0 ? -1 : index;
  }
  return general;
}

/* ---- Sessions and runs ------------------------------------------------------------------------------------------ */

static int add_entry(const OrtApi *api, OrtSessionOptions *options, const char *key, const char *value,
                     gopt_error *error) {
  return ORT(AddSessionConfigEntry(options, key, value), key);
}

/* Applies the recommended session options, JSON in a string. As they affect only speed, malformed ones are ignored. */
static int apply_options(const OrtApi *api, const char *text, OrtSessionOptions *options, gopt_error *error) {
  block *arena = NULL;
  gopt_error ignored;
  const json *found = text == NULL ? NULL : read_json(text, strlen(text), &arena, &ignored);
  const char *device = find_text(found, "device");
  int64_t threads;
  int status = 0;
  if (device == NULL || strcmp(device, "cpu") != 0) found = NULL;
  if (is_integer(find(found, "threads"), &threads) && threads > 0) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN); /* onnxruntime needs minutes to start thousands of threads */
    threads = cores > 0 && threads > cores ? cores : threads;
    status = ORT(SetIntraOpNumThreads(options, (int)threads), "to set threads");
  }
  const json *spinning = find(found, "spinning"), *arena_used = find(found, "arena");
  if (status == 0 && spinning != NULL && spinning->kind == J_FALSE)
    status = add_entry(api, options, "session.intra_op.allow_spinning", "0", error);
  if (status == 0 && arena_used != NULL && arena_used->kind == J_FALSE)
    status = ORT(DisableCpuMemArena(options), "to disable the arena");
  const json *disabled = find_list(found, "disabled");
  if (status == 0 && disabled != NULL && disabled->count > 0) {
    char *names = take(&arena, strlen(text) + 1, 1); /* the names and separators are parts of it */
    for (size_t index = 0; names != NULL && index < disabled->count; index++)
      if (disabled->items[index]->kind == J_STRING)
        strcat(strcat(names, *names ? ";" : ""), disabled->items[index]->text);
    if (names != NULL && *names)
      status = add_entry(api, options, "optimization.disable_specified_optimizers", names, error);
  }
  release(&arena);
  return status;
}

/* Records the inputs that a session has: a variant lacks inputs that it does not read. */
static int read_inputs(gopt_bundle *bundle, variant *found, gopt_error *error) {
  const OrtApi *api = bundle->api;
  OrtAllocator *allocator;
  size_t count = 0, overridable = 0;
  if (ORT(GetAllocatorWithDefaultOptions(&allocator), "to allocate") != 0 ||
      ORT(SessionGetInputCount(found->session, &count), "to list inputs") != 0 ||
      ORT(SessionGetOverridableInitializerCount(found->session, &overridable), "to list initializers") != 0)
    return -1;
  for (size_t index = 0; index < count + overridable; index++) {
    char *name = NULL;
    OrtStatus *status =
        index < count ? api->SessionGetInputName(found->session, index, allocator, &name)
                      : api->SessionGetOverridableInitializerName(found->session, index - count, allocator, &name);
    if (succeeded(api, status, error, "to list inputs") != 0) return -1;
    const size_t input = find_input(bundle, name);
    if (input < bundle->input_count) found->reads[input] = true;
    const bool is_known = input < bundle->input_count;
    if (!is_known) fail(error, "%s does not match the manifest: it has the input '%s'", found->file->path, name);
    if (ORT(AllocatorFree(allocator, name), "to free") != 0 || !is_known) return -1;
  }
  return 0;
}

/* Whether onnxruntime's version `one` precedes `other`. */
static bool is_older(const char *one, const char *other) {
  long parts[4] = {0};
  sscanf(one, "%ld.%ld", &parts[0], &parts[1]);
  sscanf(other, "%ld.%ld", &parts[2], &parts[3]);
  return parts[0] < parts[2] || (parts[0] == parts[2] && parts[1] < parts[3]);
}

static int create_session(gopt_bundle *bundle, variant *found, gopt_error *error) {
  const OrtApi *api = bundle->api;
  OrtSessionOptions *options = NULL;
  listed *kernels = found->is_native ? bundle->kernels : NULL;
  if (ORT(CreateSessionOptions(&options), "to create options") != 0) return -1;
  int status = apply_options(api, found->session_options, options, error);
  if (status == 0 && kernels != NULL)
    status = ORT(RegisterCustomOpsLibrary_V2(options, kernels->path), "to load the kernels");
  for (const char *const *library = bundle->libraries; status == 0 && library != NULL && *library != NULL; library++)
    status = ORT(RegisterCustomOpsLibrary_V2(options, *library), "to load a library");
  if (status == 0) {
    status = ORT(CreateSession(bundle->env, found->file->path, options, &found->session), "to load the model");
    const char *version = OrtGetApiBase()->GetVersionString();
    const gopt_error reason = *error;
    if (status != 0 && bundle->onnxruntime != NULL && is_older(version, bundle->onnxruntime))
      fail(error, "%.600s (the bundle was written with onnxruntime %s, this is %s)", reason.text, bundle->onnxruntime,
           version);
  }
  api->ReleaseSessionOptions(options);
  if (status == 0 && (status = read_inputs(bundle, found, error)) != 0) {
    api->ReleaseSession(found->session);
    found->session = NULL;
  }
  return status;
}

int gopt_run(gopt_bundle *bundle, int index, const OrtValue *const *inputs, OrtValue **outputs, gopt_error *error) {
  if (index < 0 || (size_t)index >= bundle->variant_count) return fail(error, "there is no variant %d", index);
  variant *found = &bundle->variants[index];
  *error = out_of_memory;
  for (size_t input = 0; input < bundle->input_count; input++) {
    const port *one = &bundle->inputs[input];
    if (inputs[input] == NULL && one->role == REQUIRED && strncmp(one->type, "optional(", 9) != 0)
      return fail(error, "the model needs a value for input '%s'", one->name);
    if (inputs[input] != NULL && one->role == CONSTANT)
      return fail(error, "'%s' is a constant of the model", one->name);
  }
  if (found->session == NULL && create_session(bundle, found, error) != 0) return -1;
  block *arena = NULL;
  const char **input_names = take(&arena, bundle->input_count, sizeof *input_names);
  const OrtValue **values = take(&arena, bundle->input_count, sizeof *values);
  const char **output_names = take(&arena, bundle->output_count, sizeof *output_names);
  int status = -1;
  if (input_names != NULL && values != NULL && output_names != NULL) {
    size_t count = 0;
    for (size_t input = 0; input < bundle->input_count; input++) {
      if (inputs[input] == NULL || !found->reads[input]) continue;
      input_names[count] = bundle->inputs[input].name;
      values[count++] = inputs[input];
    }
    for (size_t output = 0; output < bundle->output_count; output++) {
      output_names[output] = bundle->outputs[output].name;
      outputs[output] = NULL;
    }
    status = succeeded(
        bundle->api,
        bundle->api->Run(found->session, NULL, input_names, values, count, output_names, bundle->output_count, outputs),
        error, "to run the model");
  }
  release(&arena);
  return status;
}

#ifndef GOPT_NO_MAIN

/* ---- Tensors in .npy files (numpy.lib.format, versions 1 to 3) -------------------------------------------------- */

typedef struct npy {
  char order, descr[16]; /* '<', '>', '|' or '='; the rest of numpy's descr */
  bool is_fortran;
  size_t rank, count, width; /* elements, and bytes of each */
  int64_t dims[MOST_RANK];
} npy;

static bool skip_word(reader *from, const char *word) { return skip_space(from), skip(from, word); }

/* Reads a string in Python's notation, without escapes, of fewer than `size` characters. */
static bool read_quoted(reader *from, char *text, size_t size) {
  const char quote = skip_word(from, "'") ? '\'' : skip(from, "\"") ? '"' : 0;
  size_t length = 0;
  for (; quote != 0 && from->at < from->end && *from->at != quote && length + 1 < size; length++)
    text[length] = *from->at++;
  text[length] = 0;
  return quote != 0 && from->at < from->end && *from->at++ == quote;
}

static bool read_shape(reader *from, npy *found) {
  bool is_open = skip_word(from, "(");
  found->count = 1;
  for (found->rank = 0; is_open && !skip_word(from, ")"); found->rank++) {
    int64_t size = 0;
    const char *begin = from->at;
    const size_t digits = skip_digits(from);
    for (const char *at = begin; at < from->at && digits <= 18; at++) size = size * 10 + (*at - '0');
    if (digits == 0 || digits > 18 || found->rank == MOST_RANK) return false;
    if (size > 0 && found->count > SIZE_MAX / (size_t)size) return false;
    found->dims[found->rank] = size;
    found->count *= (size_t)size;
    is_open = skip_word(from, ",");
    if (!is_open) return found->rank++, skip(from, ")");
  }
  return is_open;
}

/* Reads the header {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } with entries in any order. */
static bool read_header(reader *from, npy *found) {
  int entries = 0;
  bool is_open = skip_word(from, "{");
  while (is_open && !skip_word(from, "}")) {
    char key[16], descr[16];
    if (!read_quoted(from, key, sizeof key) || !skip_word(from, ":")) return false;
    skip_space(from);
    if (strcmp(key, "descr") == 0) {
      if (!read_quoted(from, descr, sizeof descr) || descr[0] == 0) return false;
      found->order = descr[0];
      strcpy(found->descr, descr + 1);
      entries |= 1;
    } else if (strcmp(key, "fortran_order") == 0) {
      found->is_fortran = skip(from, "True");
      if (!found->is_fortran && !skip(from, "False")) return false;
      entries |= 2;
    } else if (strcmp(key, "shape") == 0) {
      if (!read_shape(from, found)) return false;
      entries |= 4;
    } else {
      return false;
    }
    is_open = skip_word(from, ",");
    if (!is_open && !skip(from, "}")) return false;
    if (!is_open) break;
  }
  return entries == 7 && memchr("<>|=", found->order, 4) != NULL;
}

/* Reads the header and the elements of a file to `arena`; NULL, and an error, otherwise. */
static unsigned char *read_npy(const char *path, npy *found, block **arena, gopt_error *error) {
  FILE *stream = fopen(path, "rb");
  if (stream == NULL) return fail(error, "can't read %s: %s", path, strerror(errno)), NULL;
  unsigned char head[12] = {0}, *data = NULL;
  struct stat file;
  size_t start = fread(head, 1, 8, stream) == 8 && memcmp(head, "\x93NUMPY", 6) == 0 && head[6] <= 3 ? 10 : 0;
  if (start != 0 && head[6] >= 2) start = 12;
  if (start != 0 && fread(head + 8, 1, start - 8, stream) != start - 8) start = 0;
  const size_t length = head[8] | (size_t)head[9] << 8 | (size_t)head[10] << 16 | (size_t)head[11] << 24;
  char *text = start == 0 || length > MOST_NPY_HEADER ? NULL : take(arena, length + 1, 1);
  reader header = {text, text, text == NULL ? NULL : text + length, arena, error};
  if (text == NULL || fread(text, 1, length, stream) != length || !read_header(&header, found)) {
    fail(error, "%s is not a .npy file of one type of elements", path);
  } else {
    const char kind = found->descr[0];
    found->width = strtoul(found->descr + 1, NULL, 10) * (kind == 'U' ? 4 : 1);
    const size_t bytes = found->count * found->width;
    if (kind == 'O') fail(error, "%s contains Python objects; save strings with a fixed length", path);
    else if (found->width > 0 && bytes / found->width != found->count) fail(error, "%s is too large", path);
    else if (fstat(fileno(stream), &file) != 0 || (uintmax_t)file.st_size < start + length + (uintmax_t)bytes)
      fail(error, "%s is truncated", path);
    else if ((data = take(arena, bytes, 1)) != NULL && fread(data, 1, bytes, stream) != bytes)
      fail(error, "can't read %s", path), data = NULL;
  }
  fclose(stream);
  return data;
}

/* Converts big-endian elements, except bytes and bits. */
static void swap_bytes(const npy *file, unsigned char *data) {
  const char kind = file->descr[0];
  const size_t unit = kind == 'U' ? 4 : kind == 'c' ? file->width / 2 : file->width;
  if (file->order != '>' || kind == 'S' || kind == 'V') return;
  for (unsigned char *at = data; at < data + file->count * file->width; at += unit) {
    for (size_t byte = 0; byte < unit / 2; byte++) {
      const unsigned char other = at[byte];
      at[byte] = at[unit - 1 - byte];
      at[unit - 1 - byte] = other;
    }
  }
}

/* The elements of a file in C order: `data`, or a copy in `arena` of elements in Fortran order. */
static unsigned char *in_c_order(const npy *file, unsigned char *data, block **arena) {
  if (data == NULL || !file->is_fortran || file->rank < 2 || file->count == 0) return data;
  unsigned char *sorted = take(arena, file->count * file->width, 1);
  for (size_t to = 0; sorted != NULL && to < file->count; to++) {
    size_t from = 0, rest = to;
    for (size_t axis = file->rank; axis-- > 0; rest /= (size_t)file->dims[axis]) {
      size_t stride = 1;
      for (size_t before = 0; before < axis; before++) stride *= (size_t)file->dims[before];
      from += rest % (size_t)file->dims[axis] * stride;
    }
    memcpy(sorted + to * file->width, data + from * file->width, file->width);
  }
  return sorted;
}

/* The elements of a file of strings, as UTF-8 in `arena`; numpy pads them with zeros. */
static const char **read_strings(const npy *file, const unsigned char *data, block **arena, gopt_error *error) {
  const char **strings = take(arena, file->count, sizeof *strings);
  for (size_t index = 0; strings != NULL && index < file->count; index++, data += file->width) {
    char *text = take(arena, file->width + 1, 1), *to = text;
    if (text == NULL) return NULL;
    if (file->descr[0] == 'S') memcpy(text, data, file->width);
    for (size_t at = 0; file->descr[0] == 'U' && at < file->width; at += 4) {
      uint32_t code;
      memcpy(&code, data + at, 4);
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return fail(error, "a string is not Unicode"), NULL;
      to += encode_utf8(code, to);
    }
    for (size_t at = strlen(text); at < file->width; at++) /* onnxruntime's function would cut the string */
      if (text[at] != 0) return fail(error, "a string contains NUL"), NULL;
    strings[index] = text;
  }
  return strings;
}

/* Writes `count` elements of a file, one per byte if they have fewer than 8 bits, as onnxruntime stores them: packed,
   the first in the low bits. */
static void pack(const element *type, const unsigned char *data, size_t count, unsigned char *to) {
  if (type->bits >= 8) memcpy(to, data, count * (size_t)type->bits / 8);
  for (size_t index = 0; type->bits < 8 && index < count; index++) {
    const size_t bit = index * (size_t)type->bits;
    const unsigned before = bit % 8 == 0 ? 0 : to[bit / 8];
    to[bit / 8] = (unsigned char)(before | (data[index] & ((1u << type->bits) - 1)) << bit % 8);
  }
}

/* The reverse of `pack`. */
static void unpack(const element *type, const unsigned char *data, size_t count, unsigned char *to) {
  for (size_t index = 0; index < count; index++) {
    const size_t bit = index * (size_t)type->bits;
    to[index] = (unsigned char)(data[bit / 8] >> bit % 8 & ((1u << type->bits) - 1));
  }
}

/* The tensor for input `one` in the file at `path`; NULL, and an error, otherwise. */
static OrtValue *load_tensor(const OrtApi *api, const port *one, const char *path, gopt_error *error) {
  const char *type = strncmp(one->type, "optional(", 9) == 0 ? one->type + 9 : one->type;
  char declared[64] = ""; /* the type without "optional( )" */
  snprintf(declared, sizeof declared, "%.*s", (int)(strlen(type) - (type == one->type ? 0 : 1)), type);
  const element *wanted = tensor_of(declared);
  if (wanted == NULL)
    return fail(error, "input '%s' is of type %s, which has no .npy file", one->name, one->type), NULL;
  block *arena = NULL;
  npy file = {0};
  OrtValue *value = NULL;
  OrtAllocator *allocator;
  void *elements_of_tensor = NULL;
  unsigned char *data = read_npy(path, &file, &arena, error);
  if (data != NULL) swap_bytes(&file, data);
  data = in_c_order(&file, data, &arena);
  const bool is_text = wanted->number == STRING && (file.descr[0] == 'U' || file.descr[0] == 'S');
  const bool has_bits = strcmp(wanted->name, "float8e5m2") == 0 && strcmp(file.descr, "f1") == 0;
  const char **strings = data == NULL || !is_text ? NULL : read_strings(&file, data, &arena, error);
  int status = data == NULL || (is_text && strings == NULL) ? -1 : 0;
  if (status == 0 && !is_text && !has_bits && strcmp(file.descr, wanted->descr) != 0)
    status = fail(error, "input '%s' expects %s, %s contains %c%s", one->name, declared, path, file.order, file.descr);
  if (status == 0) status = ORT(GetAllocatorWithDefaultOptions(&allocator), "to allocate");
  if (status == 0)
    status = ORT(CreateTensorAsOrtValue(allocator, file.dims, file.rank, wanted->number, &value), "to create a tensor");
  if (status == 0 && is_text) {
    status = ORT(FillStringTensor(value, strings, file.count), "to store strings");
  } else if (status == 0 && file.count > 0) {
    status = ORT(GetTensorMutableData(value, &elements_of_tensor), "to write a tensor");
    if (status == 0) pack(wanted, data, file.count, elements_of_tensor);
  }
  release(&arena);
  if (status == 0) return value;
  if (value != NULL) api->ReleaseValue(value);
  return NULL;
}

/* The strings of a tensor as UTF-32, padded to the longest one, whose length is written to `longest`. */
static uint32_t *utf32(const OrtApi *api, const OrtValue *value, size_t count, size_t *longest, block **arena,
                       gopt_error *error) {
  size_t bytes = 0;
  if (ORT(GetStringTensorDataLength(value, &bytes), "to read strings") != 0) return NULL;
  char *text = take(arena, bytes + 1, 1);
  size_t *offsets = take(arena, count + 1, sizeof *offsets);
  if (text == NULL || offsets == NULL) return NULL;
  if (ORT(GetStringTensorContent(value, text, bytes, offsets, count), "to read strings") != 0) return NULL;
  offsets[count] = bytes;
  uint32_t *codes = NULL;
  *longest = 1;
  for (int pass = 0; pass < 2; pass++) { /* first measures, then writes */
    if (pass == 1 && (codes = take(arena, count * *longest + 1, sizeof *codes)) == NULL) return NULL;
    for (size_t index = 0; index < count; index++) {
      const char *at = text + offsets[index], *end = text + offsets[index + 1];
      size_t length = 0;
      for (int32_t code = 1; at < end; length++) {
        if ((code = decode_utf8(&at, end)) < 0) return fail(error, "a string is not UTF-8"), NULL;
        if (code == 0 && at == end) return fail(error, "a string ends with NUL, which numpy would drop"), NULL;
        if (pass == 1) codes[index * *longest + length] = (uint32_t)code;
      }
      if (length > *longest) *longest = length;
    }
  }
  return codes;
}

static const element *element_of(int number) {
  return number > 0 && number <= COUNT_OF_ELEMENTS ? &elements[number - 1] : NULL;
}

/* Writes an output, and prints its type and shape. */
static int write_npy(const OrtApi *api, const port *one, const OrtValue *value, FILE *to, gopt_error *error) {
  fact found;
  if (examine(api, value, &found, error) != 0) return -1;
  const element *type = found.is_tensor ? element_of(found.type) : NULL;
  if (type == NULL) return fail(error, "output '%s' is of type %s, which has no .npy file", one->name, one->type);
  size_t count = 1, longest = 0, length = 0;
  char shape[MOST_RANK * 22 + 4] = "", header[sizeof shape + 128];
  for (size_t axis = 0; axis < found.rank; axis++) {
    count *= (size_t)found.dims[axis];
    length += (size_t)sprintf(shape + length, "%s%" PRId64, axis > 0 ? ", " : "", found.dims[axis]);
  }
  printf("%s: %s [%s]\n", one->name, type->name, shape);
  if (to == NULL) return 0;
  block *arena = NULL;
  void *data = NULL;
  int status = 0;
  if (type->number == STRING) {
    data = utf32(api, value, count, &longest, &arena, error);
    status = data == NULL ? -1 : 0;
  } else if (count > 0) {
    status = ORT(GetTensorMutableData((OrtValue *)value, &data), "to read an output");
  }
  if (status == 0 && type->bits > 0 && type->bits < 8 && count > 0) {
    unsigned char *unpacked = take(&arena, count, 1);
    if (unpacked != NULL) unpack(type, data, count, unpacked);
    data = unpacked;
    status = unpacked == NULL ? -1 : 0;
  }
  const size_t width = type->number == STRING ? 4 * longest : type->bits < 8 ? 1 : (size_t)type->bits / 8;
  char descr[32];
  if (type->number == STRING) snprintf(descr, sizeof descr, "<U%zu", longest);
  else snprintf(descr, sizeof descr, "%c%s", width == 1 ? '|' : '<', type->descr);
  length = (size_t)sprintf(header + 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }", descr, shape,
                           found.rank == 1 ? "," : "");
  while ((10 + length + 1) % 64 != 0) header[10 + length++] = ' '; /* numpy aligns the data */
  header[10 + length++] = '\n';
  memcpy(header, "\x93NUMPY\x01", 8); /* version 1.0 */
  header[8] = (char)(length & 0xff), header[9] = (char)(length >> 8);
  if (status == 0 &&
      (fwrite(header, 1, 10 + length, to) != 10 + length || (count > 0 && fwrite(data, width, count, to) != count)))
    status = fail(error, "can't write output '%s': %s", one->name, strerror(errno));
  release(&arena);
  return status;
}

/* ---- The program ------------------------------------------------------------------------------------------------ */

/* FOLDER/NAME.npy, with other characters than letters, digits, '.', '-' and '_' of the name as %XX. */
static char *output_path(block **arena, const char *folder, const char *name) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  char *path = take(arena, strlen(folder) + 3 * strlen(name) + 6, 1);
  if (path == NULL) return NULL;
  char *to = path + sprintf(path, "%s/", folder);
  for (const char *at = name; *at != 0; at++)
    to += sprintf(to, strchr(plain, *at) != NULL && (at > name || *at != '.') ? "%c" : "%%%02X", (unsigned char)*at);
  return strcat(path, ".npy");
}

/* Writes the outputs to `folder`, or only prints their types if it is NULL: each to a file beside the final one, and
   then renames all, so that an error leaves no part of an output. */
static int save_outputs(gopt_bundle *bundle, OrtValue *const *outputs, const char *folder, gopt_error *error) {
  block *arena = NULL;
  const size_t count = bundle->output_count;
  char **made = take(&arena, count, sizeof *made);
  int status = made == NULL ? -1 : 0;
  if (status == 0 && folder != NULL && mkdir(folder, 0777) != 0 && errno != EEXIST)
    status = fail(error, "can't create %s: %s", folder, strerror(errno));
  for (size_t index = 0; status == 0 && index < count; index++) {
    const port *one = &bundle->outputs[index];
    char *path = folder == NULL ? NULL : output_path(&arena, folder, one->name);
    char *temporary = path == NULL ? NULL : take(&arena, strlen(path) + 32, 1);
    if (folder != NULL && temporary == NULL) status = -1;
    if (temporary != NULL) sprintf(temporary, "%s.%ld.partial", path, (long)getpid());
    FILE *to = temporary == NULL ? NULL : fopen(temporary, "wbx");
    if (temporary != NULL && to == NULL) status = fail(error, "can't write %s: %s", temporary, strerror(errno));
    if (to != NULL) made[index] = temporary;
    if (status == 0) status = write_npy(bundle->api, one, outputs[index], to, error);
    if (to != NULL && fclose(to) != 0 && status == 0)
      status = fail(error, "can't write %s: %s", temporary, strerror(errno));
  }
  for (size_t index = 0; status == 0 && folder != NULL && index < count; index++) {
    const char *path = output_path(&arena, folder, bundle->outputs[index].name);
    if (path == NULL) status = -1;
    else if (rename(made[index], path) != 0) status = fail(error, "can't write %s: %s", path, strerror(errno));
    else made[index] = NULL;
  }
  for (size_t index = 0; made != NULL && index < count; index++)
    if (made[index] != NULL) remove(made[index]);
  release(&arena);
  return status;
}

/* Reads NAME=FILE to the input with this name, the longest if names contain "=". */
static int load_input(gopt_bundle *bundle, const char *word, OrtValue **inputs, gopt_error *error) {
  size_t best = bundle->input_count, longest = 0;
  for (size_t index = 0; index < bundle->input_count; index++) {
    const size_t length = strlen(bundle->inputs[index].name);
    if (strncmp(word, bundle->inputs[index].name, length) == 0 && word[length] == '=' && length >= longest)
      best = index, longest = length;
  }
  if (best == bundle->input_count) return fail(error, "'%s' is not NAME=FILE.npy with the name of an input", word);
  if (inputs[best] != NULL) return fail(error, "input '%s' has several files", bundle->inputs[best].name);
  inputs[best] = load_tensor(bundle->api, &bundle->inputs[best], word + longest + 1, error);
  return inputs[best] == NULL ? -1 : 0;
}

static int usage(const char *program) {
  fprintf(stderr,
          "usage: %s BUNDLE [NAME=FILE.npy ...] [-o FOLDER] [--library FILE ...]\n"
          "  -o FOLDER       write each output to FOLDER/NAME.npy\n"
          "  --library FILE  register a library of custom operators\n",
          program);
  return 2;
}

int main(int count, char **words) {
  const char *folder = NULL, *outputs_to = NULL;
  gopt_error error = out_of_memory;
  gopt_bundle *bundle = NULL;
  block *arena = NULL;
  const char **libraries = take(&arena, (size_t)count + 1, sizeof *libraries);
  const char **files = take(&arena, (size_t)count + 1, sizeof *files);
  size_t library_count = 0, file_count = 0;
  bool is_understood = libraries != NULL && files != NULL;
  for (int index = 1; is_understood && index < count; index++) {
    const char *word = words[index], *next = index + 1 < count ? words[index + 1] : NULL;
    if (strcmp(word, "-o") == 0 && next != NULL) outputs_to = words[++index];
    else if (strcmp(word, "--library") == 0 && next != NULL) libraries[library_count++] = words[++index];
    else if (word[0] == '-') is_understood = false;
    else if (folder == NULL) folder = word;
    else files[file_count++] = word;
  }
  if (!is_understood || folder == NULL) return release(&arena), usage(words[0]);
  int status = gopt_open(folder, libraries, &bundle, &error), chosen = -1;
  OrtValue **inputs = NULL, **outputs = NULL;
  if (status == 0) {
    inputs = take(&arena, bundle->input_count, sizeof *inputs);
    outputs = take(&arena, bundle->output_count, sizeof *outputs);
    status = inputs == NULL || outputs == NULL ? -1 : 0;
  }
  for (size_t index = 0; status == 0 && index < file_count; index++)
    status = load_input(bundle, files[index], inputs, &error);
  const OrtValue *const *fed = (const OrtValue *const *)inputs;
  if (status == 0) status = chosen = gopt_choose(bundle, fed, &error);
  if (status >= 0) status = gopt_run(bundle, chosen, fed, outputs, &error);
  if (status == 0) {
    printf("ran %s\n", gopt_variant_name(bundle, chosen));
    status = save_outputs(bundle, outputs, outputs_to, &error);
  }
  for (size_t index = 0; inputs != NULL && index < bundle->input_count; index++)
    if (inputs[index] != NULL) bundle->api->ReleaseValue(inputs[index]);
  for (size_t index = 0; outputs != NULL && index < bundle->output_count; index++)
    if (outputs[index] != NULL) bundle->api->ReleaseValue(outputs[index]);
  gopt_close(bundle);
  release(&arena);
  if (status != 0) fprintf(stderr, "error: %s\n", error.text);
  return status == 0 ? 0 : 1;
}

#endif
