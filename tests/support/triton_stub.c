/* As much of Triton's backend interface as our backend calls, and a driver: for builds with sanitizers.
 *
 *   triton_stub FOLDER N WIDTH   serves the model in FOLDER/1 (numpy: y = x + 1 for x of WIDTH numbers) on two instances
 *                                in two threads, N batches each, some with requests that are wrong; kills the runner
 *                                half-way. Prints for each: requests answered, wrong answers, errors, responses that
 *                                are missing. Then the threads that copy, before and after the model is unloaded.
 *   triton_stub MAJOR            prints what the backend says of a server with this major version of the interface
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton_api.h"

enum { ROWS = 3, REQUESTS = 4, PROCESSORS = 8 };

static uint32_t interface_major = 1;
static uint64_t width;

/* In place of libc's: the backend starts as many threads as on a machine of this size. */
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
  (void)pid;
  CPU_ZERO_S(size, set);
  for (int i = 0; i < PROCESSORS; i++) CPU_SET_S(i, size, set);
  return 0;
}

struct TRITONSERVER_Error { char text[3000]; };
struct TRITONSERVER_Message { const char *json; };
struct TRITONBACKEND_Model { const char *folder; void *state; };
struct TRITONBACKEND_ModelInstance { TRITONBACKEND_Model *model; void *state; uint64_t batches, reported, failed; };
struct TRITONBACKEND_Input { int64_t shape[2]; uint64_t size; float *bytes; uint32_t buffers; int datatype; };
struct TRITONBACKEND_Output { float *bytes; uint64_t size; };
struct TRITONBACKEND_Request {
  TRITONBACKEND_Input x;
  int answered, failed, released;
  TRITONBACKEND_Output y;
};
struct TRITONBACKEND_Response { TRITONBACKEND_Request *request; };

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model);
TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, const uint32_t count);
TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend);

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *text) {
  TRITONSERVER_Error *error = calloc(1, sizeof *error);
  snprintf(error->text, sizeof error->text, "%d %s", code, text);
  return error;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) { free(error); }
const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error) { return error->text; }
TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, const int line, const char *text) {
  fprintf(stderr, "%d %s:%d %s\n", level, file, line, text);
  return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *m, const char **base, size_t *size) {
  *base = m->json;
  *size = strlen(m->json);
  return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message) {
  free(message);
  return NULL;
}
int TRITONSERVER_StringToDataType(const char *name) { return strcmp(name, "FP32") == 0 ? 11 : 0; }
uint32_t TRITONSERVER_DataTypeByteSize(int datatype) { return datatype == 11 ? 4 : 0; }
TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
  *major = interface_major;
  *minor = 19;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name) {
  (void)model;
  *name = "m";
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version) {
  (void)model;
  *version = 1;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model, int *artifact, const char **path) {
  *artifact = ARTIFACT_FILESYSTEM;
  *path = model->folder;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelConfig(
    TRITONBACKEND_Model *model, const uint32_t version, TRITONSERVER_Message **config) {
  (void)model, (void)version;
  static char json[40];
  snprintf(json, sizeof json, "{\"width\": %llu}", (unsigned long long)width);
  *config = malloc(sizeof **config);
  (*config)->json = json;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state) {
  *state = model->state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state) {
  model->state = state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *i, TRITONBACKEND_Model **model) {
  *model = i->model;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *instance, int32_t *device) {
  (void)instance;
  *device = 0;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance, void **state) {
  *state = instance->state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance, void *state) {
  instance->state = state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request, const bool success, const uint64_t start,
    const uint64_t ready, const uint64_t executed, const uint64_t end) {
  if (request->released || start > ready || ready > executed || executed > end) abort();
  *(success ? &instance->reported : &instance->failed) += 1;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance *instance, const uint64_t rows, const uint64_t start, const uint64_t ready,
    const uint64_t executed, const uint64_t end) {
  if (rows == 0 || start > ready || ready > executed || executed > end) abort();
  instance->batches++;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestInput(
    TRITONBACKEND_Request *request, const char *name, TRITONBACKEND_Input **input) {
  if (strcmp(name, "x") != 0) return TRITONSERVER_ErrorNew(2, "no such input");
  *input = &request->x;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *count) {
  (void)request;
  *count = 1;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(
    TRITONBACKEND_Request *request, const uint32_t index, const char **name) {
  (void)request, (void)index;
  *name = "y";
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags) {
  if (flags != RELEASE_ALL || request->released++) abort();
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input *input, const char **name, int *datatype, const int64_t **shape, uint32_t *rank,
    uint64_t *byte_size, uint32_t *buffer_count) {
  if (name != NULL) *name = "x";
  if (datatype != NULL) *datatype = input->datatype;
  if (shape != NULL) *shape = input->shape;
  if (rank != NULL) *rank = 2;
  if (byte_size != NULL) *byte_size = input->size;
  if (buffer_count != NULL) *buffer_count = input->buffers;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input *input, const uint32_t index, const void **buffer, uint64_t *byte_size, int *memory_type,
    int64_t *memory_type_id) {
  uint64_t first = input->size / input->buffers;
  *buffer = (const char *)input->bytes + index * first;
  *byte_size = index + 1 == input->buffers ? input->size - index * first : first;
  *memory_type = MEMORY_CPU;
  *memory_type_id = 0;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *request) {
  *response = malloc(sizeof **response);
  (*response)->request = request;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response *response, TRITONBACKEND_Output **output, const char *name, const int datatype,
    const int64_t *shape, const uint32_t rank) {
  if (strcmp(name, "y") != 0 || datatype != 11 || rank != 2 || shape[1] != (int64_t)width) abort();
  *output = &response->request->y;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(
    TRITONBACKEND_Output *output, void **buffer, const uint64_t byte_size, int *memory_type, int64_t *memory_id) {
  *buffer = output->bytes = malloc(byte_size);
  output->size = byte_size;
  *memory_type = MEMORY_CPU;
  *memory_id = 0;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(
    TRITONBACKEND_Response *response, const uint32_t flags, TRITONSERVER_Error *error) {
  if (flags != COMPLETE_FINAL || response->request->answered++) abort();
  response->request->failed = error != NULL;
  free(response);
  return NULL;
}

struct worker {
  TRITONBACKEND_ModelInstance instance;
  int batches;
  int answered, wrong, failed, missing;
};

static int is_bad(int batch, int number) { return batch % 5 == 2 && number == 1; }

static void *work(void *pointer) {
  struct worker *worker = pointer;
  for (int batch = 0; batch < worker->batches; batch++) {
    TRITONBACKEND_Request requests[REQUESTS], *pointers[REQUESTS];
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < REQUESTS; i++) {
      TRITONBACKEND_Input *x = &requests[i].x;
      uint64_t rows = (uint64_t)(1 + (batch + i) % ROWS);
      x->shape[0] = (int64_t)rows;
      x->shape[1] = (int64_t)width;
      x->size = rows * width * sizeof(float);
      x->bytes = malloc(x->size);
      x->buffers = 1 + (uint32_t)(batch + i) % 3;
      x->datatype = 11;
      for (uint64_t k = 0; k < rows * width; k++) x->bytes[k] = (float)(batch * 100 + i * 10) + (float)(k % 7919);
      if (is_bad(batch, i)) *(batch % 2 ? &x->shape[1] : &x->shape[0]) += 1;
      pointers[i] = &requests[i];
    }
    if (TRITONBACKEND_ModelInstanceExecute(&worker->instance, pointers, REQUESTS) != NULL) abort();
    for (int i = 0; i < REQUESTS; i++) {
      TRITONBACKEND_Request *request = &requests[i];
      worker->missing += !request->answered || !request->released;
      worker->answered += !request->failed;
      worker->failed += request->failed && !is_bad(batch, i);
      worker->wrong += is_bad(batch, i) && !request->failed;
      uint64_t rows = (uint64_t)request->x.shape[0];
      for (uint64_t k = 0; !request->failed && k < rows * width; k++)
        worker->wrong += request->y.bytes[k] != request->x.bytes[k] + 1;
      free(request->x.bytes);
      free(request->y.bytes);
    }
  }
  return NULL;
}

/* The runner is this thread's only child. */
static int kill_runner(void) {
  int child = 0;
  FILE *children = fopen("/proc/thread-self/children", "r");
  int found = children != NULL && fscanf(children, "%d", &child) == 1;
  if (children != NULL) fclose(children);
  return found && kill(child, SIGKILL) == 0 && usleep(1200000) == 0 ? 0 : -1;
}

static int copying_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  char path[300], name[32];
  int found = 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE *file = fopen(path, "r");
    found += file != NULL && fscanf(file, "%31s", name) == 1 && strcmp(name, "tritune-copy") == 0;
    if (file != NULL) fclose(file);
  }
  closedir(tasks);
  return found;
}

int main(int count, char **arguments) {
  if (count == 2) {
    interface_major = (uint32_t)atoi(arguments[1]);
    TRITONSERVER_Error *error = TRITONBACKEND_Initialize(NULL);
    printf("%s\n", error == NULL ? "fits" : error->text);
    free(error);
    return 0;
  }
  if (count != 4) return 2;
  width = strtoull(arguments[3], NULL, 10);
  TRITONBACKEND_Model model = {.folder = arguments[1]};
  struct worker workers[2];
  pthread_t threads[2];
  memset(workers, 0, sizeof workers);
  if (TRITONBACKEND_Initialize(NULL) != NULL || TRITONBACKEND_ModelInitialize(&model) != NULL) return 2;
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 2; i++) {
      workers[i].instance.model = &model;
      workers[i].batches = atoi(arguments[2]);
      TRITONSERVER_Error *error = half == 0 ? TRITONBACKEND_ModelInstanceInitialize(&workers[i].instance) : NULL;
      if (error != NULL) return fprintf(stderr, "%s\n", error->text), 2;
    }
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, &workers[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (half == 0 && kill_runner() != 0) return 2;
  }
  for (int i = 0; i < 2; i++) {
    struct worker *worker = &workers[i];
    int sent = 2 * worker->batches * REQUESTS;
    if ((int)(worker->instance.reported + worker->instance.failed) != sent) return 2;
    printf("%d %d %d %d\n", worker->answered, worker->wrong, worker->failed, worker->missing);
    if (TRITONBACKEND_ModelInstanceFinalize(&worker->instance) != NULL) return 2;
  }
  int before = copying_threads();
  if (TRITONBACKEND_ModelFinalize(&model) != NULL) return 2;
  /* A joined thread is listed a little longer. */
  for (int i = 0; i < 10000 && copying_threads() > 0; i++) usleep(1000);
  printf("%d %d\n", before, copying_threads());
  return 0;
}
