/* The process that executes a model's batches on one device: started, connected to, killed, ended. */
#ifndef TRITUNE_RUNNER_H
#define TRITUNE_RUNNER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RUNNER_TEXT 2000

struct runner {
  struct runner *next;
  pthread_mutex_t lock;
  const char *script; /* the caller's */
  const char *config;
  size_t config_size;
  int device;
  pid_t pid; /* 0: none */
  int control;
  uint64_t generation; /* of the process; 0: none so far */
  int64_t started_ms;
  char failure[RUNNER_TEXT + 1]; /* why it did not start the last time */
};

void runner_init(struct runner *runner, const char *script, const char *config, size_t config_size, int device);
/* Return the socket of a new slot, or -1 with errno. Starts the process if there is none, or if `*generation` is
 * the one that runs: that one has failed. EAGAIN: it failed within a second of its start, so try later; `failure`,
 * of RUNNER_TEXT bytes and one, then has the reason if it is known. */
int runner_connect(struct runner *runner, uint64_t *generation, char *failure);
/* Kill the process if it is still this generation. `why`: the reason if it has just not started, else NULL. */
void runner_kill(struct runner *runner, uint64_t generation, const char *why);
/* End the process, and return when it is gone. */
void runner_end(struct runner *runner);

#endif
