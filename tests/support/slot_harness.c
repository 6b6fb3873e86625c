/* Drives the slot protocol and the runner's lifetime without Triton, for builds with sanitizers.
 *
 *   slot_harness packets           each packet of standard input (4 bytes of length, then the bytes) is decoded and
 *                                  also received over a socket; prints how many made sense
 *   slot_harness runner SCRIPT N   starts the runner, sends N batches, kills it, sends N more, ends it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runner.h"
#include "slot.h"

static uint64_t touched;

/* What the backend does with what it was told: nothing may be read outside of the memory. */
static void use(const struct slot *slot, const struct slot_message *message) {
  for (uint32_t i = 0; i < message->head.tensors; i++) {
    const struct slot_tensor *tensor = &message->tensor[i];
    if (tensor->rank > SLOT_RANK) exit(2);
    uint64_t bytes = slot_bytes(tensor->shape, tensor->rank, 4);
    if (!slot_holds(slot, tensor, bytes)) continue;
    for (uint64_t k = 0; k < bytes; k += 64) touched += slot->memory[tensor->offset + k];
    if (bytes > 0) touched += slot->memory[tensor->offset + bytes - 1];
  }
  touched += strlen(message->text);
}

static int packets(void) {
  static uint8_t packet[65536];
  struct slot_message *message = malloc(sizeof *message);
  struct slot slot;
  uint32_t length;
  int pair[2], sound = 0;
  if (slot_bytes((int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40}, 2, 4) != UINT64_MAX) return 2;
  if (slot_bytes((int64_t[]){4, -1}, 2, 4) != UINT64_MAX || slot_bytes((int64_t[]){3, 0, 5}, 3, 4) != 0) return 2;
  slot_clear(&slot);
  slot.size = 4096;
  slot.memory = mmap(NULL, slot.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (slot.memory == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0) return 2;
  slot.socket = pair[0];
  while (fread(&length, sizeof length, 1, stdin) == 1) {
    if (length > sizeof packet || (length > 0 && fread(packet, length, 1, stdin) != 1)) return 2;
    /* A buffer of exactly this size: a read past its end is found. */
    uint8_t *exact = malloc(length > 0 ? length : 1);
    memcpy(exact, packet, length);
    int decoded = slot_decode(exact, length, message);
    free(exact);
    if (decoded == 0) {
      sound++;
      use(&slot, message);
      int file = memfd_create("harness", MFD_CLOEXEC);
      if (ftruncate(file, 4096) < 0) return 2;
      if (slot_map(&slot, file, message->head.size) == 0) return 2; /* it is not sealed */
      close(file);
    }
    if (length > 0 && send(pair[1], packet, length, 0) == (ssize_t)length) {
      int file, received = slot_receive(&slot, message, &file, 1000);
      if (received != decoded || (received < 0 && errno != EPROTO)) return 2;
      if (received == 0) use(&slot, message);
    }
  }
  close(pair[1]);
  if (slot_receive(&slot, message, NULL, 1000) == 0 || errno != EPIPE) return 2;
  slot_close(&slot);
  free(message);
  printf("%d\n", sound);
  return 0;
}

static int batches(struct runner *runner, uint64_t *generation, int count) {
  struct slot_message *said = calloc(1, sizeof *said);
  struct slot_message *ask = calloc(1, sizeof *ask);
  char failure[RUNNER_TEXT + 1];
  struct slot slot;
  int file, done = 0;
  slot_clear(&slot);
  slot.socket = runner_connect(runner, generation, failure);
  if (slot.socket < 0) return -1;
  if (slot_receive(&slot, said, &file, 20000) < 0 || said->head.kind != SLOT_HELLO) return -1;
  if (slot_map(&slot, file, said->head.size) < 0) return -1;
  uint64_t at = said->tensor[0].offset;
  for (; done < count; done++) {
    float *x = (float *)(void *)(slot.memory + at);
    for (int i = 0; i < 256; i++) x[i] = (float)(done + i);
    ask->head = (struct slot_head){.magic = SLOT_MAGIC, .kind = SLOT_RUN, .tensors = 1, .rows = 1};
    ask->tensor[0] = (struct slot_tensor){.rank = 2, .shape = {1, 256}};
    if (slot_send(&slot, ask) < 0 || slot_receive(&slot, said, NULL, 10000) < 0) break;
    if (said->head.kind != SLOT_DONE || !slot_holds(&slot, &said->tensor[0], 32)) break;
    const float *y = (const float *)(const void *)(slot.memory + said->tensor[0].offset);
    if (y[0] != (float)(done + 1) || y[7] != (float)(done + 8)) break;
  }
  slot_close(&slot);
  free(said);
  free(ask);
  return done;
}

int main(int count, char **arguments) {
  if (count == 2 && strcmp(arguments[1], "packets") == 0) return packets();
  if (count != 4 || strcmp(arguments[1], "runner") != 0) return 2;
  int wanted = atoi(arguments[3]);
  struct runner runner;
  uint64_t generation = 0, again = 0;
  runner_init(&runner, arguments[2], "{}", 2, 0);
  int first = batches(&runner, &generation, wanted);
  runner_kill(&runner, generation, NULL);
  usleep(1100000);
  int second = batches(&runner, &again, wanted);
  pid_t pid = runner.pid;
  runner_end(&runner);
  printf("%d %d %d %d\n", first, second, (int)(again - generation), kill(pid, 0) < 0 && errno == ESRCH);
  return 0;
}
