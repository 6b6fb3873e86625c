/* See copies.h. */
#define _GNU_SOURCE
#include "copies.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One thread more for each MiB, which one copies in about 115 us. To wake another costs about 25 us: two copied
 * 2.3 MiB in 160 us, one in 270 us (Xeon, 2.1 GHz). */
#define SHARE ((uint64_t)1 << 20)
/* What a thread takes at a time, for about 30 us: so long they wait for each other at the end. */
#define PIECE ((uint64_t)256 << 10)

/* A place in the list of copies. */
struct place {
  uint32_t at;
  uint64_t offset;
};

struct copies_job {
  struct copies_job *next;
  const struct copies *copies;
  struct place place; /* what is before it has been taken */
  uint64_t untaken, undone;
};

void copiers_init(struct copiers *copiers) {
  cpu_set_t usable;
  int processors = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
  /* A container's quota is not seen in the processors; "max" is none. */
  long long quota_us, period_us;
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
  if (file != NULL && fscanf(file, "%lld %lld", &quota_us, &period_us) == 2 && quota_us / period_us < processors)
    processors = (int)(quota_us / period_us);
  if (file != NULL) fclose(file);
  memset(copiers, 0, sizeof *copiers);
  pthread_mutex_init(&copiers->lock, NULL);
  pthread_cond_init(&copiers->work, NULL);
  pthread_cond_init(&copiers->done, NULL);
  /* The other half is for the front end, the runner and whoever else is here: a copy waits for its slowest helper. */
  uint32_t half = (uint32_t)processors / 2;
  copiers->most = half > COPIES_HELPERS ? COPIES_HELPERS : half > 0 ? half - 1 : 0;
}

void copiers_end(struct copiers *copiers) {
  pthread_mutex_lock(&copiers->lock);
  copiers->ending = 1;
  pthread_cond_broadcast(&copiers->work);
  pthread_mutex_unlock(&copiers->lock);
  for (uint32_t i = 0; i < copiers->started; i++) pthread_join(copiers->helper[i], NULL);
}

/* Return the place so many bytes further on; copy what is between if asked to. */
static struct place pass(const struct copies *copies, struct place place, uint64_t bytes, int copy) {
  while (bytes > 0) {
    uint64_t left = copies->list[place.at].bytes - place.offset, part = left < bytes ? left : bytes;
    if (copy)
      memcpy((uint8_t *)copies->list[place.at].to + place.offset,
             (const uint8_t *)copies->list[place.at].from + place.offset, part);
    place = part == left ? (struct place){place.at + 1, 0} : (struct place){place.at, place.offset + part};
    bytes -= part;
  }
  return place;
}

/* Copy pieces of a job until all are taken. The lock is held, except while a piece is copied. */
static void work(struct copiers *copiers, struct copies_job *job) {
  while (job->untaken > 0) {
    struct place place = job->place;
    uint64_t bytes = job->untaken < PIECE ? job->untaken : PIECE;
    job->place = pass(job->copies, place, bytes, 0);
    job->untaken -= bytes;
    if (job->untaken == 0) {
      struct copies_job **link = &copiers->jobs;
      while (*link != job) link = &(*link)->next;
      *link = job->next;
    }
    pthread_mutex_unlock(&copiers->lock);
    pass(job->copies, place, bytes, 1);
    pthread_mutex_lock(&copiers->lock);
    job->undone -= bytes;
    if (job->undone == 0) pthread_cond_broadcast(&copiers->done);
  }
}

static void *help(void *pointer) {
  struct copiers *copiers = pointer;
  pthread_mutex_lock(&copiers->lock);
  while (!copiers->ending) {
    if (copiers->jobs != NULL)
      work(copiers, copiers->jobs);
    else
      pthread_cond_wait(&copiers->work, &copiers->lock);
  }
  pthread_mutex_unlock(&copiers->lock);
  return NULL;
}

/* Wake so many helpers; start those that are missing. Without them the others copy more. Signals are the server's. */
static void call_helpers(struct copiers *copiers, uint32_t wanted) {
  sigset_t all, before;
  for (uint32_t i = 0; i < wanted && i < copiers->started; i++) pthread_cond_signal(&copiers->work);
  if (wanted <= copiers->started) return;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (copiers->started < wanted &&
         pthread_create(&copiers->helper[copiers->started], NULL, help, copiers) == 0)
    pthread_setname_np(copiers->helper[copiers->started++], "tritune-copy");
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int copies_add(struct copies *copies, void *to, const void *from, uint64_t bytes) {
  if (bytes == 0) return 0;
  if (copies->count == copies->room) {
    uint32_t room = 2 * copies->room + 16;
    void *list = realloc(copies->list, room * sizeof copies->list[0]);
    if (list == NULL) return -1;
    copies->list = list;
    copies->room = room;
  }
  copies->list[copies->count].to = to;
  copies->list[copies->count].from = from;
  copies->list[copies->count++].bytes = bytes;
  copies->bytes += bytes;
  return 0;
}

void copies_run(struct copies *copies, struct copiers *copiers) {
  uint64_t threads = copies->bytes / SHARE;
  if (threads > copiers->most) threads = copiers->most + 1;
  if (threads < 2) {
    pass(copies, (struct place){0, 0}, copies->bytes, 1);
  } else {
    struct copies_job job = {.copies = copies, .untaken = copies->bytes, .undone = copies->bytes};
    pthread_mutex_lock(&copiers->lock);
    struct copies_job **last = &copiers->jobs;
    while (*last != NULL) last = &(*last)->next;
    *last = &job;
    call_helpers(copiers, (uint32_t)threads - 1);
    work(copiers, &job);
    while (job.undone > 0) pthread_cond_wait(&copiers->done, &copiers->lock);
    pthread_mutex_unlock(&copiers->lock);
  }
  copies->count = 0;
  copies->bytes = 0;
}
