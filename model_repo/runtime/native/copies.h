/* Copies of a batch's tensors, done by the calling thread and by helpers if there are many bytes. No Triton in it. */
#ifndef TRITUNE_COPIES_H
#define TRITUNE_COPIES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define COPIES_HELPERS 3

/* What is to be copied. */
struct copies {
  struct {
    void *to;
    const void *from;
    uint64_t bytes;
  } *list;
  uint32_t count, room;
  uint64_t bytes; /* of all */
};

struct copies_job;

/* Threads that all instances of a model share. They start when a batch first needs them. */
struct copiers {
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  struct copies_job *jobs; /* that have pieces which nobody has taken, the oldest first */
  pthread_t helper[COPIES_HELPERS];
  uint32_t started, most;
  int ending;
};

void copiers_init(struct copiers *copiers);
/* Return when the threads are gone; nobody may copy any more. */
void copiers_end(struct copiers *copiers);

/* 0, or -1 if there is no memory for it. */
int copies_add(struct copies *copies, void *to, const void *from, uint64_t bytes);
/* Copy everything, and empty the list. */
void copies_run(struct copies *copies, struct copiers *copiers);

#endif
