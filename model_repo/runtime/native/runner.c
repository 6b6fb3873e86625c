/* See runner.h. */
#define _GNU_SOURCE
#include "runner.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { CONTROL_FD = 3, RETRY_MS = 1000, END_MS = 5000 };

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * (int64_t)1000 + now.tv_nsec / 1000000;
}

void runner_init(struct runner *runner, const char *script, const char *config, size_t config_size, int device) {
  memset(runner, 0, sizeof *runner);
  pthread_mutex_init(&runner->lock, NULL);
  runner->script = script;
  runner->config = config;
  runner->config_size = config_size;
  runner->device = device;
  runner->control = -1;
  runner->started_ms = -RETRY_MS;
}

/* The lock is held in all functions below that have no lock of their own. */
static void reap(struct runner *runner) {
  if (runner->control >= 0) close(runner->control);
  runner->control = -1;
  if (runner->pid == 0) return;
  for (int64_t until = now_ms() + END_MS; now_ms() < until;) {
    pid_t ended = waitpid(runner->pid, NULL, WNOHANG);
    if (ended == runner->pid || (ended < 0 && errno != EINTR)) {
      runner->pid = 0;
      return;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  kill(runner->pid, SIGKILL);
  while (waitpid(runner->pid, NULL, 0) < 0 && errno == EINTR) continue;
  runner->pid = 0;
}

static int file_of(const char *bytes, size_t size) {
  int file = memfd_create("tritune-config", MFD_CLOEXEC);
  for (size_t done = 0; file >= 0 && done < size;) {
    ssize_t written = write(file, bytes + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      close(file);
      return -1;
    }
    done += (size_t)written;
  }
  if (file >= 0) lseek(file, 0, SEEK_SET);
  return file;
}

static int spawn(struct runner *runner) {
  int pair[2], config = file_of(runner->config, runner->config_size);
  if (config < 0) return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
    close(config);
    return -1;
  }
  char device[16];
  snprintf(device, sizeof device, "%d", runner->device);
  char *arguments[] = {"python3", "-I", "-B", (char *)runner->script, device, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none, standard;
  sigemptyset(&none);
  sigemptyset(&standard);
  sigaddset(&standard, SIGPIPE);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, config, 0);
  posix_spawn_file_actions_adddup2(&actions, pair[1], CONTROL_FD);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &standard);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  int reason = posix_spawnp(&runner->pid, arguments[0], &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(config);
  close(pair[1]);
  if (reason != 0) {
    close(pair[0]);
    runner->pid = 0;
    errno = reason;
    return -1;
  }
  runner->control = pair[0];
  runner->generation++;
  runner->started_ms = now_ms();
  return 0;
}

/* Give one end of a new pair to the process; return the other. */
static int offer(struct runner *runner) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return -1;
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  memset(&control, 0, sizeof control);
  struct iovec part = {.iov_base = "S", .iov_len = 1};
  struct msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  struct cmsghdr *files = CMSG_FIRSTHDR(&header);
  files->cmsg_level = SOL_SOCKET;
  files->cmsg_type = SCM_RIGHTS;
  files->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(files), &pair[1], sizeof(int));
  ssize_t sent = sendmsg(runner->control, &header, MSG_NOSIGNAL);
  int reason = errno;
  close(pair[1]);
  if (sent == 1) return pair[0];
  close(pair[0]);
  errno = reason;
  return -1;
}

int runner_connect(struct runner *runner, uint64_t *generation, char *failure) {
  int socket = -1;
  pthread_mutex_lock(&runner->lock);
  if (runner->pid != 0 && waitpid(runner->pid, NULL, WNOHANG) != 0) {
    runner->pid = 0;
    reap(runner);
  }
  if (runner->pid != 0 && runner->generation == *generation) {
    kill(runner->pid, SIGKILL);
    reap(runner);
  }
  if (runner->pid == 0 && now_ms() - runner->started_ms < RETRY_MS)
    errno = EAGAIN;
  else if (runner->pid != 0 || spawn(runner) == 0)
    socket = offer(runner);
  int reason = errno;
  *generation = runner->generation;
  memcpy(failure, runner->failure, sizeof runner->failure);
  pthread_mutex_unlock(&runner->lock);
  errno = reason;
  return socket;
}

void runner_kill(struct runner *runner, uint64_t generation, const char *why) {
  pthread_mutex_lock(&runner->lock);
  if (runner->generation == generation)
    snprintf(runner->failure, sizeof runner->failure, "%s", why == NULL ? "" : why);
  if (runner->pid != 0 && runner->generation == generation) {
    kill(runner->pid, SIGKILL);
    reap(runner);
  }
  pthread_mutex_unlock(&runner->lock);
}

void runner_end(struct runner *runner) {
  pthread_mutex_lock(&runner->lock);
  reap(runner);
  pthread_mutex_unlock(&runner->lock);
}
