/* Triton backend `tritune`: one runner process per model and device, one slot per instance.
 *
 * `ModelInstanceExecute` gathers the requests of a batch in its instance's slot, wakes the runner's thread for this
 * slot, waits, and scatters the outputs into responses. Triton's batcher, statistics and metrics stay as they are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "copies.h"
#include "runner.h"
#include "slot.h"
#include "triton_api.h"

#define EXPORT __attribute__((visibility("default")))
#define SCRIPT "slots_model.py"

enum { HELLO_MS = 600000 }; /* loading an engine and compiling its kernels */

struct tensor {
  char *name;
  int datatype;
  uint64_t item;
};

struct model {
  const char *name;
  char *script;
  char *config;
  size_t config_size;
  pthread_mutex_t lock;
  struct runner *runners;
  struct copiers copiers;
};

/* One request of a batch. */
struct item {
  TRITONBACKEND_Request *request;
  TRITONBACKEND_Response *response;
  TRITONSERVER_Error *error;
  uint64_t rows;
  uint64_t first; /* row of the batch */
  uint64_t start_ns, ready_ns, executed_ns;
};

struct instance {
  TRITONBACKEND_ModelInstance *triton;
  struct model *model;
  struct runner *runner;
  uint64_t generation;
  struct slot slot;
  uint32_t inputs, outputs;
  uint64_t max_batch;
  int64_t wait_ms;
  struct tensor tensor[SLOT_TENSORS]; /* inputs, then outputs */
  struct slot_tensor place[SLOT_TENSORS]; /* of the inputs */
  struct slot_message ask, answer;
  struct item *items;
  uint32_t room; /* for items */
  struct copies copies; /* of a batch: in, then out */
};

#define TRY(call)                             \
  do {                                        \
    TRITONSERVER_Error *error_ = (call);      \
    if (error_ != NULL) return error_;        \
  } while (0)

static void drop(TRITONSERVER_Error *error) {
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

__attribute__((format(printf, 2, 3))) static TRITONSERVER_Error *error_of(int code, const char *format, ...) {
  char text[SLOT_TEXT + 300];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return TRITONSERVER_ErrorNew(code, text);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- the connection of an instance ---- */

static void forget_tensors(struct instance *in) {
  for (uint32_t i = 0; i < in->inputs + in->outputs; i++) free(in->tensor[i].name);
  in->inputs = in->outputs = 0;
}

static void disconnect(struct instance *in) {
  slot_close(&in->slot);
  forget_tensors(in);
}

/* Read the lines `DATATYPE name` of HELLO. */
static int read_tensors(struct instance *in, const struct slot_message *hello) {
  char *rest = in->answer.text, *line;
  forget_tensors(in);
  for (uint32_t i = 0; i < hello->head.tensors; i++) {
    line = strsep(&rest, "\n");
    char *name = line == NULL ? NULL : strchr(line, ' ');
    if (name == NULL) return -1;
    *name++ = 0;
    struct tensor *tensor = &in->tensor[i];
    tensor->datatype = TRITONSERVER_StringToDataType(line);
    tensor->item = TRITONSERVER_DataTypeByteSize(tensor->datatype);
    tensor->name = tensor->item == 0 ? NULL : strdup(name);
    if (tensor->name == NULL) return -1;
    *(i < hello->head.inputs ? &in->inputs : &in->outputs) += 1;
  }
  return in->inputs > 0 && in->outputs > 0 ? 0 : -1;
}

static TRITONSERVER_Error *lost(struct instance *in, const char *when) {
  int reason = errno;
  runner_kill(in->runner, in->generation, NULL);
  disconnect(in);
  const char *why = reason == ETIMEDOUT ? "does not answer, and was killed"
                    : reason == EPROTO  ? "sent a message that makes no sense, and was killed"
                                        : "has ended";
  return error_of(
      ERROR_UNAVAILABLE, "The process that executes %s %s %s. It is started again with the next request; see the "
      "server's log.", in->model->name, why, when);
}

static TRITONSERVER_Error *take_layout(struct instance *in) {
  struct slot_message *said = &in->answer;
  if (said->head.tensors < in->inputs) return errno = EPROTO, lost(in, "while its memory grew");
  memcpy(in->place, said->tensor, in->inputs * sizeof in->place[0]);
  if (said->head.size != in->slot.size && slot_map(&in->slot, in->slot.file, said->head.size) < 0)
    return lost(in, "while its memory grew");
  for (uint32_t i = 0; i < in->inputs; i++)
    if (!slot_holds(&in->slot, &in->place[i], 0)) return errno = EPROTO, lost(in, "while its memory grew");
  return NULL;
}

static TRITONSERVER_Error *connect_slot(struct instance *in) {
  if (in->slot.socket >= 0) return NULL;
  char failure[RUNNER_TEXT + 1];
  in->slot.socket = runner_connect(in->runner, &in->generation, failure);
  if (in->slot.socket < 0 && errno == EAGAIN && failure[0] != 0) return error_of(ERROR_INTERNAL, "%s", failure);
  if (in->slot.socket < 0)
    return error_of(
        ERROR_UNAVAILABLE, "The process that executes %s cannot be started%s: %s", in->model->name,
        errno == EAGAIN ? " again so soon" : "", strerror(errno));
  int file = -1;
  int got = slot_receive(&in->slot, &in->answer, &file, HELLO_MS);
  in->slot.file = file;
  if (got < 0) return lost(in, "while it started");
  if (in->answer.head.kind == SLOT_ERROR) {
    TRITONSERVER_Error *error = error_of(ERROR_INTERNAL, "%s", in->answer.text);
    runner_kill(in->runner, in->generation, in->answer.text);
    disconnect(in);
    return error;
  }
  in->max_batch = in->answer.head.rows;
  in->wait_ms = (int64_t)(in->answer.head.wait_ms & INT64_MAX);
  if (in->answer.head.kind != SLOT_HELLO || read_tensors(in, &in->answer) < 0 || file < 0)
    return errno = EPROTO, lost(in, "while it started");
  return take_layout(in);
}

/* Send `ask` and wait for an answer of this kind. `*refused`: the runner lives, and says what is wrong. */
static TRITONSERVER_Error *exchange(struct instance *in, enum slot_kind kind, const char *when, int *refused) {
  in->ask.head.magic = SLOT_MAGIC;
  if (slot_send(&in->slot, &in->ask) < 0 || slot_receive(&in->slot, &in->answer, NULL, in->wait_ms) < 0)
    return lost(in, when);
  if (in->answer.head.kind == SLOT_ERROR) return *refused = 1, error_of(ERROR_INTERNAL, "%s", in->answer.text);
  return in->answer.head.kind == (uint32_t)kind ? NULL : (errno = EPROTO, lost(in, when));
}

/* ---- a batch ---- */

/* Check a request's inputs. The first of a batch sets the shapes in `ask`, the others must have them too. */
static TRITONSERVER_Error *examine(struct instance *in, struct item *item, int is_first) {
  for (uint32_t i = 0; i < in->inputs; i++) {
    TRITONBACKEND_Input *input;
    const int64_t *shape;
    uint32_t rank;
    uint64_t size;
    int datatype;
    struct slot_tensor *asked = &in->ask.tensor[i];
    const char *name = in->tensor[i].name;
    TRY(TRITONBACKEND_RequestInput(item->request, name, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &rank, &size, NULL));
    if (datatype != in->tensor[i].datatype || rank > SLOT_RANK || (in->max_batch > 0 && rank == 0))
      return error_of(ERROR_INVALID_ARG, "%s has another datatype or more dimensions than can be served", name);
    if (slot_bytes(shape, rank, in->tensor[i].item) != size)
      return error_of(ERROR_INVALID_ARG, "the size of %s does not fit its shape", name);
    uint64_t rows = in->max_batch > 0 ? (uint64_t)shape[0] : 1;
    uint32_t from = in->max_batch > 0 ? 1 : 0;
    if (i == 0) item->rows = rows;
    if (rows == 0 || rows != item->rows)
      return error_of(ERROR_INVALID_ARG, "the inputs of a request have different batch sizes");
    if (is_first) {
      memset(asked, 0, sizeof *asked);
      asked->rank = rank;
      memcpy(asked->shape, shape, rank * sizeof shape[0]);
    } else if (asked->rank != rank || memcmp(asked->shape + from, shape + from, (rank - from) * sizeof shape[0])) {
      return error_of(ERROR_INVALID_ARG, "%s has another shape than in the other requests of this batch", name);
    }
  }
  return NULL;
}

/* Set the number of rows in `ask`, and make room for the inputs of a full batch: the runner prepares for one, and
 * inputs may not move once they are gathered. */
static TRITONSERVER_Error *make_room(struct instance *in, uint64_t rows, int *refused) {
  int grow = 0;
  for (uint32_t i = 0; i < in->inputs; i++) {
    struct slot_tensor *asked = &in->ask.tensor[i];
    if (in->max_batch > 0) asked->shape[0] = (int64_t)(rows > in->max_batch ? rows : in->max_batch);
    uint64_t full = slot_bytes(asked->shape, asked->rank, in->tensor[i].item);
    if (in->max_batch > 0) asked->shape[0] = (int64_t)rows;
    asked->bytes = slot_bytes(asked->shape, asked->rank, in->tensor[i].item);
    grow |= full > in->place[i].bytes;
  }
  in->ask.head = (struct slot_head){.kind = SLOT_GROW, .tensors = in->inputs, .rows = rows};
  if (!grow) return NULL;
  TRY(exchange(in, SLOT_LAYOUT, "while its memory grew", refused));
  TRY(take_layout(in));
  for (uint32_t i = 0; i < in->inputs; i++)
    if (!slot_holds(&in->slot, &in->place[i], in->ask.tensor[i].bytes))
      return errno = EPROTO, lost(in, "while its memory grew");
  return NULL;
}

static TRITONSERVER_Error *copy_later(struct instance *in, void *to, const void *from, uint64_t bytes) {
  return copies_add(&in->copies, to, from, bytes) == 0 ? NULL : error_of(ERROR_INTERNAL, "out of memory");
}

static TRITONSERVER_Error *gather(struct instance *in, struct item *item) {
  for (uint32_t i = 0; i < in->inputs; i++) {
    TRITONBACKEND_Input *input;
    uint64_t size;
    uint32_t buffers;
    TRY(TRITONBACKEND_RequestInput(item->request, in->tensor[i].name, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &size, &buffers));
    uint64_t row = in->ask.tensor[i].bytes / (in->max_batch > 0 ? (uint64_t)in->ask.tensor[i].shape[0] : 1);
    uint8_t *to = in->slot.memory + in->place[i].offset + item->first * row;
    for (uint32_t k = 0; k < buffers; k++) {
      const void *bytes;
      uint64_t part;
      int memory = MEMORY_CPU;
      int64_t memory_id = 0;
      TRY(TRITONBACKEND_InputBuffer(input, k, &bytes, &part, &memory, &memory_id));
      if (memory == MEMORY_GPU)
        return error_of(ERROR_UNSUPPORTED, "%s is in GPU memory, which this backend does not read",
                        in->tensor[i].name);
      if (part > size) return error_of(ERROR_INVALID_ARG, "%s is larger than its shape", in->tensor[i].name);
      TRY(copy_later(in, to, bytes, part));
      to += part;
      size -= part;
    }
    if (size != 0) return error_of(ERROR_INVALID_ARG, "%s is smaller than its shape", in->tensor[i].name);
  }
  return NULL;
}

/* Check the outputs of `answer` before anything is read. */
static int outputs_are_sound(const struct instance *in, uint64_t rows) {
  if (in->answer.head.tensors != in->outputs) return 0;
  for (uint32_t i = 0; i < in->outputs; i++) {
    const struct slot_tensor *got = &in->answer.tensor[i];
    if (!slot_holds(&in->slot, got, slot_bytes(got->shape, got->rank, in->tensor[in->inputs + i].item))) return 0;
    if (in->max_batch > 0 && (got->rank == 0 || got->shape[0] != (int64_t)rows)) return 0;
  }
  return 1;
}

static TRITONSERVER_Error *add_output(
    struct instance *in, const struct item *item, uint32_t i, TRITONBACKEND_Response *response) {
  const struct slot_tensor *got = &in->answer.tensor[i];
  const struct tensor *tensor = &in->tensor[in->inputs + i];
  int64_t shape[SLOT_RANK];
  memcpy(shape, got->shape, sizeof shape);
  uint64_t offset = got->offset;
  if (in->max_batch > 0) {
    uint64_t row = slot_bytes(got->shape + 1, got->rank - 1, tensor->item);
    shape[0] = (int64_t)item->rows;
    offset += item->first * row;
  }
  uint64_t size = slot_bytes(shape, got->rank, tensor->item);
  TRITONBACKEND_Output *output;
  void *to;
  int memory = MEMORY_CPU;
  int64_t memory_id = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, tensor->name, tensor->datatype, shape, got->rank));
  TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &memory, &memory_id));
  if (memory == MEMORY_GPU) return error_of(ERROR_UNSUPPORTED, "%s cannot be written to GPU memory", tensor->name);
  return copy_later(in, to, in->slot.memory + offset, size);
}

static TRITONSERVER_Error *scatter(
    struct instance *in, const struct item *item, TRITONBACKEND_Response *response) {
  uint32_t wanted;
  TRY(TRITONBACKEND_RequestOutputCount(item->request, &wanted));
  for (uint32_t k = 0; k < wanted; k++) {
    const char *name;
    TRY(TRITONBACKEND_RequestOutputName(item->request, k, &name));
    for (uint32_t i = 0; i < in->outputs; i++)
      if (strcmp(in->tensor[in->inputs + i].name, name) == 0) TRY(add_output(in, item, i, response));
  }
  return NULL;
}

static void log_and_drop(TRITONSERVER_Error *failed) {
  if (failed != NULL) TRITONSERVER_LogMessage(LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(failed));
  drop(failed);
}

/* Send the responses of a batch, once the outputs of all are in them. */
static void respond(struct instance *in, struct item *items, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    struct item *item = &items[i];
    log_and_drop(TRITONBACKEND_ResponseNew(&item->response, item->request));
    if (item->response != NULL && item->error == NULL) item->error = scatter(in, item, item->response);
  }
  copies_run(&in->copies, &in->model->copiers);
  for (uint32_t i = 0; i < count; i++)
    if (items[i].response != NULL)
      log_and_drop(TRITONBACKEND_ResponseSend(items[i].response, COMPLETE_FINAL, items[i].error));
}

/* Execute these requests as one batch, and send their responses. False: try them one by one. */
static int execute(struct instance *in, struct item *items, uint32_t count) {
  uint64_t rows = 0, start_ns = now_ns();
  uint32_t sound = 0;
  int refused = 0;
  TRITONSERVER_Error *error = connect_slot(in);
  for (uint32_t i = 0; error == NULL && i < count; i++) {
    if (items[i].error != NULL || (items[i].error = examine(in, &items[i], sound == 0)) != NULL) continue;
    items[i].first = rows;
    rows += items[i].rows;
    sound++;
  }
  if (error == NULL && sound > 0) error = make_room(in, rows, &refused);
  for (uint32_t i = 0; error == NULL && i < count; i++)
    if (items[i].error == NULL) items[i].error = gather(in, &items[i]);
  copies_run(&in->copies, &in->model->copiers);
  uint64_t ready_ns = now_ns();
  if (error == NULL && sound > 0) {
    in->ask.head = (struct slot_head){.kind = SLOT_RUN, .tensors = in->inputs, .rows = rows};
    error = exchange(in, SLOT_DONE, "while it executed a batch", &refused);
  }
  if (error == NULL && sound > 0) {
    if (in->answer.head.size > in->slot.size && slot_map(&in->slot, in->slot.file, in->answer.head.size) < 0)
      error = lost(in, "while it executed a batch");
    else if (!outputs_are_sound(in, rows))
      errno = EPROTO, error = lost(in, "while it executed a batch");
  }
  if (error != NULL && refused && sound > 1) {
    drop(error);
    return 0;
  }
  uint64_t executed_ns = now_ns();
  for (uint32_t i = 0; i < count; i++) {
    if (error != NULL && items[i].error == NULL)
      items[i].error = TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, TRITONSERVER_ErrorMessage(error));
    items[i].start_ns = start_ns;
    items[i].ready_ns = ready_ns;
    items[i].executed_ns = executed_ns;
  }
  respond(in, items, count);
  if (error == NULL && sound > 0)
    drop(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        in->triton, rows, start_ns, ready_ns, executed_ns, now_ns()));
  drop(error);
  return 1;
}

EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *triton, TRITONBACKEND_Request **requests, const uint32_t count) {
  struct instance *in;
  TRY(TRITONBACKEND_ModelInstanceState(triton, (void **)&in));
  if (count > in->room) {
    struct item *items = realloc(in->items, count * sizeof items[0]);
    if (items == NULL) return error_of(ERROR_INTERNAL, "out of memory for %u requests", count);
    in->items = items;
    in->room = count;
  }
  for (uint32_t i = 0; i < count; i++) in->items[i] = (struct item){.request = requests[i]};
  /* What it says of the model is not known before the first connection. */
  TRITONSERVER_Error *unconnected = connect_slot(in);
  int together = unconnected != NULL || in->max_batch > 0;
  drop(unconnected);
  if (!together || !execute(in, in->items, count))
    for (uint32_t i = 0; i < count; i++) execute(in, &in->items[i], 1);
  uint64_t end_ns = now_ns();
  for (uint32_t i = 0; i < count; i++) {
    struct item *item = &in->items[i];
    drop(TRITONBACKEND_ModelInstanceReportStatistics(
        triton, item->request, item->error == NULL, item->start_ns, item->ready_ns, item->executed_ns, end_ns));
    drop(item->error);
    drop(TRITONBACKEND_RequestRelease(item->request, RELEASE_ALL));
  }
  return NULL;
}

/* ---- lifetimes ---- */

static struct runner *runner_on(struct model *model, int device) {
  pthread_mutex_lock(&model->lock);
  struct runner *runner = model->runners;
  while (runner != NULL && runner->device != device) runner = runner->next;
  if (runner == NULL && (runner = malloc(sizeof *runner)) != NULL) {
    runner_init(runner, model->script, model->config, model->config_size, device);
    runner->next = model->runners;
    model->runners = runner;
  }
  pthread_mutex_unlock(&model->lock);
  return runner;
}

EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *triton) {
  TRITONBACKEND_Model *model;
  int32_t device;
  TRY(TRITONBACKEND_ModelInstanceModel(triton, &model));
  TRY(TRITONBACKEND_ModelInstanceDeviceId(triton, &device));
  struct instance *in = calloc(1, sizeof *in);
  if (in == NULL) return error_of(ERROR_INTERNAL, "out of memory");
  slot_clear(&in->slot);
  in->triton = triton;
  TRITONSERVER_Error *error = TRITONBACKEND_ModelState(model, (void **)&in->model);
  if (error == NULL && (in->runner = runner_on(in->model, device)) == NULL)
    error = error_of(ERROR_INTERNAL, "out of memory");
  if (error == NULL) error = connect_slot(in);
  if (error == NULL) error = TRITONBACKEND_ModelInstanceSetState(triton, in);
  if (error != NULL) {
    disconnect(in);
    free(in);
  }
  return error;
}

EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *triton) {
  struct instance *in = NULL;
  TRY(TRITONBACKEND_ModelInstanceState(triton, (void **)&in));
  if (in == NULL) return NULL;
  disconnect(in);
  free(in->items);
  free(in->copies.list);
  free(in);
  return TRITONBACKEND_ModelInstanceSetState(triton, NULL);
}

static void free_model(struct model *model) {
  while (model->runners != NULL) {
    struct runner *runner = model->runners;
    model->runners = runner->next;
    runner_end(runner);
    free(runner);
  }
  copiers_end(&model->copiers);
  free(model->script);
  free(model->config);
  free(model);
}

static TRITONSERVER_Error *read_config(TRITONBACKEND_Model *triton, struct model *model) {
  TRITONSERVER_Message *message;
  const char *json;
  TRY(TRITONBACKEND_ModelConfig(triton, 1, &message));
  TRITONSERVER_Error *error = TRITONSERVER_MessageSerializeToJson(message, &json, &model->config_size);
  if (error == NULL && (model->config = malloc(model->config_size + 1)) == NULL)
    error = error_of(ERROR_INTERNAL, "out of memory");
  if (error == NULL) memcpy(model->config, json, model->config_size);
  drop(TRITONSERVER_MessageDelete(message));
  return error;
}

EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *triton) {
  const char *folder;
  uint64_t version;
  int artifact;
  struct model *model = calloc(1, sizeof *model);
  if (model == NULL) return error_of(ERROR_INTERNAL, "out of memory");
  pthread_mutex_init(&model->lock, NULL);
  copiers_init(&model->copiers);
  TRITONSERVER_Error *error = TRITONBACKEND_ModelName(triton, &model->name);
  if (error == NULL) error = TRITONBACKEND_ModelVersion(triton, &version);
  if (error == NULL) error = TRITONBACKEND_ModelRepository(triton, &artifact, &folder);
  if (error == NULL && artifact != ARTIFACT_FILESYSTEM)
    error = error_of(ERROR_UNSUPPORTED, "the model repository is not in the file system");
  if (error == NULL && asprintf(&model->script, "%s/%llu/" SCRIPT, folder, (unsigned long long)version) < 0)
    error = error_of(ERROR_INTERNAL, "out of memory");
  if (error == NULL) error = read_config(triton, model);
  if (error == NULL) error = TRITONBACKEND_ModelSetState(triton, model);
  if (error != NULL) free_model(model);
  return error;
}

EXPORT TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *triton) {
  struct model *model = NULL;
  TRY(TRITONBACKEND_ModelState(triton, (void **)&model));
  if (model != NULL) free_model(model);
  return NULL;
}

EXPORT TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend) {
  uint32_t major, minor;
  (void)backend;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != API_MAJOR || minor < API_MINOR)
    return error_of(
        ERROR_UNSUPPORTED, "this backend is for Triton's backend interface %u.%u, and this server has %u.%u",
        API_MAJOR, API_MINOR, major, minor);
  return NULL;
}
