/* CUDA's driver as far as device times need it: one device whose clock goes on by one millisecond with every event that
 * is recorded on it, so that every device time is known beforehand. Preloaded, it also stands in for the one function of
 * torch that knows the current stream.
 *
 * FAKE_CUDA: "never", events don't come; "capturing", the stream is being captured; "broken", asking fails. While a file is
 * there that FAKE_CUDA_BEHIND names, events don't come either; that of FAKE_CUDA_NOT_YET means that the program has not
 * called cuInit. FAKE_CUDA_CLOCK: the device's clock is the host's instead, and an event comes as soon as it is recorded,
 * or, while the device is held by fake_cuda_hold, when that is over. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };

/* `held`: it comes when that hold is over (0: it has come). */
typedef struct { double milliseconds; int held; } event_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double device_clock;
static int recorded, captured_asked;

static int is(const char *what) {
    const char *mode = getenv("FAKE_CUDA");
    return mode && strstr(mode, what) != NULL;
}

static int there(const char *variable) {
    const char *path = getenv(variable);
    return path && access(path, F_OK) == 0;
}

enum { HOLDS = 1000 };
static int hold, holding;
static double let_go[HOLDS];

static double host_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

int fake_cuda_recorded(void) { return recorded; }

void fake_cuda_hold(void) {
    pthread_mutex_lock(&lock);
    hold = (hold + 1) % HOLDS, holding = 1, let_go[hold] = 0.0;
    pthread_mutex_unlock(&lock);
}
void fake_cuda_let_go(void) {
    pthread_mutex_lock(&lock);
    let_go[hold] = host_clock(), holding = 0;
    pthread_mutex_unlock(&lock);
}
static double came(event_t *event) { return event->held ? let_go[event->held] : event->milliseconds; }

int cuDeviceGetCount(int *count) { return there("FAKE_CUDA_NOT_YET") ? NOT_INITIALIZED : (*count = 1, SUCCESS); }
int cuCtxGetDevice(int *device) { return *device = 0, SUCCESS; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return *flags = 0, *active = device == 0, SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)1, device ? INVALID_VALUE : SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, SUCCESS; }
int cuCtxPushCurrent_v2(void *context) { return context == (void *)1 ? SUCCESS : INVALID_VALUE; }
int cuCtxPopCurrent_v2(void **context) { return *context = (void *)1, SUCCESS; }
int cuEventCreate(void **event, unsigned flags) {
    event_t *made = calloc(1, sizeof *made);
    return *event = made, flags == 0 && made ? SUCCESS : INVALID_VALUE;
}
int cuEventRecord(void *event, void *stream) {
    if (stream != (void *)7) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    device_clock = getenv("FAKE_CUDA_CLOCK") ? host_clock() : device_clock + 1.0;
    *(event_t *)event = (event_t){device_clock, holding ? hold : 0};
    recorded += 1;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuEventQuery(void *event) {
    if (is("broken")) return ILLEGAL_ADDRESS;
    if (came(event) == 0.0) return NOT_READY;
    return is("never") || there("FAKE_CUDA_BEHIND") ? NOT_READY : SUCCESS;
}
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    int ready = cuEventQuery(to);
    if (ready == SUCCESS) *milliseconds = (float)(came(to) - came(from));
    return ready;
}
int cuStreamIsCapturing(void *stream, int *capturing) {
    captured_asked += stream == (void *)7;
    return *capturing = is("capturing"), SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int current;
    int before = current;
    return current = *mode, *mode = before, SUCCESS;
}
int aoti_torch_get_current_cuda_stream(int device, void **stream) { return *stream = (void *)7, device; }
