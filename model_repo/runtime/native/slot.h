/* A slot: memory shared with the runner process, and the messages about it. No Triton in it.
 *
 * The memory is a memfd, which the runner makes and seals against shrinking: nothing lies under /dev/shm, and it is
 * gone with the last process that has it. Messages are packets of a Unix socket and are checked before they are
 * used: memory that the other side may change while we look holds tensors' bytes alone.
 */
#ifndef TRITUNE_SLOT_H
#define TRITUNE_SLOT_H

#include <stddef.h>
#include <stdint.h>

#define SLOT_MAGIC 0x31544c53u /* "SLT1" */
#define SLOT_TENSORS 64
#define SLOT_RANK 8
#define SLOT_TEXT 2000

enum slot_kind {
  SLOT_HELLO = 1,  /* from the runner, with the memfd: inputs and outputs; text: one line `DATATYPE name` each */
  SLOT_RUN = 2,    /* to the runner: the whole shapes of the inputs in the slot */
  SLOT_DONE = 3,   /* from the runner: the outputs in the slot */
  SLOT_GROW = 4,   /* to the runner: whole shapes that the inputs do not have room for */
  SLOT_LAYOUT = 5, /* from the runner: where the inputs are now */
  SLOT_ERROR = 6   /* from the runner, in place of any answer: text */
};

struct slot_tensor {
  uint64_t offset; /* in the memory */
  uint64_t bytes;  /* of an input: the room; of an output: its size */
  int64_t shape[SLOT_RANK];
  uint32_t rank;
  uint32_t unused;
};

struct slot_head {
  uint32_t magic;
  uint32_t kind;
  uint32_t tensors; /* that follow; then the text */
  uint32_t inputs;  /* of HELLO: how many of the tensors are inputs */
  uint64_t rows;    /* of HELLO: the largest batch, 0 without batching; of RUN: the batch */
  uint64_t size;    /* of the memory; of HELLO also */
  uint64_t wait_ms; /* of HELLO: after how long the runner hangs */
};

struct slot_message {
  struct slot_head head;
  struct slot_tensor tensor[SLOT_TENSORS];
  char text[SLOT_TEXT + 1]; /* ends with 0 */
};

struct slot {
  int socket;
  int file;
  uint8_t *memory;
  uint64_t size;
};

void slot_clear(struct slot *slot);
void slot_close(struct slot *slot);

/* 0, or -1 with errno: EPIPE if the runner is gone, ETIMEDOUT, EPROTO for a message that makes no sense. */
int slot_send(const struct slot *slot, const struct slot_message *message);
/* `file`: where to put a file that comes along, NULL if none is expected. */
int slot_receive(const struct slot *slot, struct slot_message *message, int *file, int64_t wait_ms);
/* Read a packet of `length` bytes. */
int slot_decode(const void *packet, size_t length, struct slot_message *message);
/* Take a sealed file as memory; again if it has grown to `size`. */
int slot_map(struct slot *slot, int file, uint64_t size);
/* True if the tensor lies in the memory, and has `bytes` bytes of room. */
int slot_holds(const struct slot *slot, const struct slot_tensor *tensor, uint64_t bytes);
/* The size of a shape in bytes; UINT64_MAX if a size is negative or the product overflows. */
uint64_t slot_bytes(const int64_t *shape, uint32_t rank, uint64_t item);

#endif
