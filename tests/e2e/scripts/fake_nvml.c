/* NVIDIA's management library as far as a test needs it: two GPUs whose numbers are known, built as libnvidia-ml.so.1.
 * The file that FAKE_NVML names holds "PID XID": the process that computes on the second GPU, and an error that is told
 * of once. Layouts are those of nvml.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef long nvmlDevice_t;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10 };

static int field(int which) {
    int values[2] = {0, 0};
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%d %d", &values[0], &values[1]) < 1) values[0] = 0;
        fclose(file);
    }
    return values[which];
}

nvmlReturn_t nvmlInit_v2(void) { return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { return *count = 2, SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    return index < 2 ? (*device = (long)index + 1, SUCCESS) : INVALID;
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) { return *index = (unsigned)device - 1, SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    return snprintf(uuid, length, "GPU-%ld%ld", device, device), SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    (void)device;
    return snprintf(name, length, "Fake H200"), SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned rates[2]) {
    return rates[0] = 40 * (unsigned)device, rates[1] = 10, SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, void *info) {
    struct { unsigned version; unsigned long long total, reserved, free, used; } *memory = info;
    memory->total = 140000000000ull;
    memory->used = 1000000000ull * (unsigned long long)device;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    (void)device;
    return *milliwatts = 412500, SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *temperature) {
    (void)device, (void)sensor;
    return *temperature = 61, SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int clock, unsigned *megahertz) {
    (void)device;
    return *megahertz = clock == 1 ? 1980 : 3201, SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return *reasons = device == 1 ? 1 : 4, SUCCESS; /* idle; power cap */
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter, unsigned long long *count) {
    (void)device, (void)counter;
    return kind == 0 ? (*count = 7, SUCCESS) : NOT_SUPPORTED;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, process_t *processes) {
    unsigned there = device == 2 && field(0) ? 1 : 0;
    if (*count < there) return *count = there, TOO_SMALL;
    *count = there;
    if (there) processes[0] = (process_t){(unsigned)field(0), 1000000, ~0u, ~0u};
    return SUCCESS;
}

typedef struct { nvmlDevice_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
nvmlReturn_t nvmlEventSetCreate(long *set) { return *set = 0, SUCCESS; }
nvmlReturn_t nvmlEventSetFree(long set) { return (void)set, SUCCESS; }
static nvmlDevice_t watched[16];
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, long set) {
    (void)types, (void)set;
    return device == 2 ? (watched[0] = device, SUCCESS) : NOT_SUPPORTED;
}
nvmlReturn_t nvmlEventSetWait_v2(long set, event_t *event, unsigned timeout) {
    static int told;
    (void)set, (void)timeout;
    if (told || !field(1) || watched[0] != 2) return TIMEOUT;
    told = 1;
    memset(event, 0, sizeof *event);
    event->device = 2, event->type = 8, event->data = (unsigned long long)field(1);
    return SUCCESS;
}
