/* See slot.h. */
#define _GNU_SOURCE
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void slot_clear(struct slot *slot) {
  slot->socket = slot->file = -1;
  slot->memory = NULL;
  slot->size = 0;
}

void slot_close(struct slot *slot) {
  if (slot->memory != NULL) munmap(slot->memory, slot->size);
  if (slot->file >= 0) close(slot->file);
  if (slot->socket >= 0) close(slot->socket);
  slot_clear(slot);
}

static int failed(int reason) {
  errno = reason;
  return -1;
}

int slot_send(const struct slot *slot, const struct slot_message *message) {
  size_t length = sizeof message->head + message->head.tensors * sizeof message->tensor[0];
  ssize_t sent;
  do {
    sent = send(slot->socket, message, length, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)length ? 0 : failed(EPIPE);
}

int slot_decode(const void *packet, size_t length, struct slot_message *message) {
  const uint8_t *bytes = packet;
  struct slot_head *head = &message->head;
  if (length < sizeof *head) return failed(EPROTO);
  memcpy(head, bytes, sizeof *head);
  if (head->magic != SLOT_MAGIC || head->kind < SLOT_HELLO || head->kind > SLOT_ERROR) return failed(EPROTO);
  if (head->tensors > SLOT_TENSORS || head->inputs > head->tensors) return failed(EPROTO);
  size_t tensors = head->tensors * sizeof message->tensor[0];
  if (length - sizeof *head < tensors) return failed(EPROTO);
  if (tensors > 0) memcpy(message->tensor, bytes + sizeof *head, tensors);
  for (uint32_t i = 0; i < head->tensors; i++)
    if (message->tensor[i].rank > SLOT_RANK) return failed(EPROTO);
  size_t text = length - sizeof *head - tensors;
  if (text > SLOT_TEXT) return failed(EPROTO);
  if (text > 0) memcpy(message->text, bytes + sizeof *head + tensors, text);
  message->text[text] = 0;
  return 0;
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * (int64_t)1000 + now.tv_nsec / 1000000;
}

static int wait_for(int socket, int64_t wait_ms) {
  int64_t until = now_ms() + wait_ms;
  for (;;) {
    int64_t left = until - now_ms();
    struct pollfd event = {.fd = socket, .events = POLLIN};
    int ready = poll(&event, 1, left < 0 ? 0 : left > 1000000 ? 1000000 : (int)left);
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return -1;
    if (ready == 0 && left <= 0) return failed(ETIMEDOUT);
  }
}

/* Put the first file that came along to `*file`, and close any other. */
static void take_files(struct msghdr *header, int *file) {
  for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part != NULL; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int one;
      memcpy(&one, CMSG_DATA(part) + i * sizeof one, sizeof one);
      if (file != NULL && *file < 0)
        *file = one;
      else
        close(one);
    }
  }
}

int slot_receive(const struct slot *slot, struct slot_message *message, int *file, int64_t wait_ms) {
  struct slot_message packet;
  union {
    char bytes[CMSG_SPACE(4 * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {.iov_base = &packet, .iov_len = sizeof packet};
  struct msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  if (file != NULL) *file = -1;
  if (wait_for(slot->socket, wait_ms) < 0) return -1;
  ssize_t length;
  do {
    length = recvmsg(slot->socket, &header, MSG_CMSG_CLOEXEC);
  } while (length < 0 && errno == EINTR);
  if (length <= 0) return failed(EPIPE);
  take_files(&header, file);
  if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return failed(EPROTO);
  return slot_decode(&packet, (size_t)length, message);
}

int slot_map(struct slot *slot, int file, uint64_t size) {
  struct stat seen;
  int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(file, &seen) < 0) return failed(EPROTO);
  if (size == 0 || size > (uint64_t)INT64_MAX || seen.st_size < (int64_t)size) return failed(EPROTO);
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) return -1;
  if (slot->memory != NULL) munmap(slot->memory, slot->size);
  slot->file = file;
  slot->memory = memory;
  slot->size = size;
  return 0;
}

int slot_holds(const struct slot *slot, const struct slot_tensor *tensor, uint64_t bytes) {
  return tensor->bytes >= bytes && tensor->offset <= slot->size && tensor->bytes <= slot->size - tensor->offset;
}

uint64_t slot_bytes(const int64_t *shape, uint32_t rank, uint64_t item) {
  uint64_t bytes = item;
  for (uint32_t i = 0; i < rank; i++)
    if (shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes)) return UINT64_MAX;
  return bytes;
}
