/* A stand-in of NVIDIA's libnvidia-ml.so.1 for tests: some functions of nvml.h, with its struct layouts.

   The environment says what the machine has, at each call:
     NVML_STUB_GPUS        number of GPUs; 8 by default
     NVML_STUB_ERRORS      errors by function and GPU: "uuid:3=15,energy=3,*:5=15,init=9"
     NVML_STUB_MIG         1: all GPUs are divided; the instance MIG-…-ff exists, and has memory and processes only
     NVML_STUB_REASONS     bits of the reasons for a lower clock
     NVML_STUB_MHZ         clock of the SMs, of at most 1980
     NVML_STUB_PROCESSES   number of compute processes on the GPU; 1 by default, which is the caller
     NVML_STUB_LIMIT       power limit in mW, by default 700000
   The energy counter begins at 1 kJ and grows by 4 kJ at each reading. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, MOST = 16, DEFAULT_GPUS = 8 };

typedef struct { int index, instance; } Gpu;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { Gpu *gpu; int number; } Sample;
typedef struct { unsigned id; int result; double value; const char *shortName, *longName, *unit; } Metric;
typedef struct { unsigned version, count; Sample *before, *after; Metric metrics[]; } MetricsGet;

static Gpu gpus[MOST], instance = {0, 1};
static int started, samples, taken;
static unsigned long long millijoules = 1000000;

static long number(const char *name, long without) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : without;
}

/* The error that the environment wants of this function, for this GPU. */
static int error(const char *name, const Gpu *gpu) {
    char text[256], *entry, *rest = text;
    snprintf(text, sizeof text, "%s", getenv("NVML_STUB_ERRORS") ? getenv("NVML_STUB_ERRORS") : "");
    while ((entry = strsep(&rest, ","))) {
        char *code = strchr(entry, '='), *index = strchr(entry, ':');
        if (!code) continue;
        *code++ = 0;
        if (index) *index++ = 0;
        if ((!strcmp(entry, "*") ? gpu != NULL : !strcmp(entry, name)) && (!index || (gpu && atoi(index) == gpu->index)))
            return atoi(code);
    }
    return OK;
}

#define CHECK(name, gpu) do { int wrong = error(name, gpu); if (wrong) return wrong; } while (0)
#define COUNTER(name, gpu) CHECK(name, gpu); if ((gpu)->instance) return NOT_SUPPORTED

int stub_started(void) { return started; }
int stub_samples(void) { return samples; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; CHECK("init", NULL); started++; return OK; }
int nvmlShutdown(void) { started--; return OK; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
    }
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK("count", NULL);
    *count = (unsigned)number("NVML_STUB_GPUS", DEFAULT_GPUS);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index >= MOST) return INVALID;
    gpus[index].index = (int)index;
    *gpu = &gpus[index];
    CHECK("handle", *gpu);
    return OK;
}
static void name(const Gpu *gpu, char *text, size_t size) {
    snprintf(text, size, gpu->instance ? "MIG-00000000-0000-0000-0000-0000000000ff"
                                       : "GPU-00000000-0000-0000-0000-0000000000%02x", (unsigned)gpu->index);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    char text[96];
    for (unsigned index = 0; index < (unsigned)number("NVML_STUB_GPUS", DEFAULT_GPUS); index++) {
        int wrong = nvmlDeviceGetHandleByIndex_v2(index, gpu);
        name(*gpu, text, sizeof text);
        if (!strcmp(text, uuid)) return wrong;
    }
    *gpu = &instance;
    name(*gpu, text, sizeof text);
    return number("NVML_STUB_MIG", 0) && !strcmp(text, uuid) ? OK : NOT_FOUND;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned size) { CHECK("uuid", gpu); name(gpu, uuid, size); return OK; }
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *info) {
    CHECK("pci", gpu);
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + (unsigned)gpu->index;
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus);
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) {
    CHECK("mig", gpu);
    *count = number("NVML_STUB_MIG", 0) ? 7 : 0;
    return OK;
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *rates) {
    COUNTER("utilization", gpu);
    rates->gpu = 75;
    rates->memory = 30;
    return OK;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    CHECK("memory", gpu);
    memory->total = 80000000000ull;
    memory->used = 5000000000ull;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    CHECK("processes", gpu);
    unsigned wanted = (unsigned)number("NVML_STUB_PROCESSES", 1), room = *count;
    *count = wanted;
    if (!wanted) return OK;
    if (room < wanted || !processes) return TOO_SMALL;
    for (unsigned place = 0; place < wanted; place++)
        processes[place] = (Process){place ? 1 : (unsigned)getpid(), 3000000000ull, 0xFFFFFFFFu, 0xFFFFFFFFu};
    return OK;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *milliwatts) { COUNTER("power", gpu); *milliwatts = 412500; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *milliwatts) {
    COUNTER("limit", gpu);
    *milliwatts = (unsigned)number("NVML_STUB_LIMIT", 700000);
    return OK;
}
int nvmlDeviceGetPowerManagementDefaultLimit(Gpu *gpu, unsigned *milliwatts) {
    COUNTER("limit", gpu);
    *milliwatts = 700000;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *energy) {
    COUNTER("energy", gpu);
    *energy = millijoules += 4000000;
    return OK;
}
int nvmlDeviceGetClockInfo(Gpu *gpu, int kind, unsigned *mhz) {
    COUNTER("clock", gpu);
    if (kind != 1) return INVALID;
    *mhz = (unsigned)number("NVML_STUB_MHZ", 1980);
    return OK;
}
int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int kind, unsigned *mhz) {
    COUNTER("clock", gpu);
    if (kind != 1) return INVALID;
    *mhz = 1980;
    return OK;
}
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *celsius) {
    COUNTER("temperature", gpu);
    if (sensor) return INVALID;
    *celsius = 88;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *reasons) {
    COUNTER("reasons", gpu);
    *reasons = (unsigned long long)number("NVML_STUB_REASONS", 0);
    return OK;
}
int nvmlGpmQueryDeviceSupport(Gpu *gpu, GpmSupport *support) {
    COUNTER("gpm", gpu);
    if (support->version != 1) return 25;
    support->supported = error("gpm_support", gpu) == OK;
    return OK;
}
int nvmlGpmSampleAlloc(Sample **sample) { *sample = calloc(1, sizeof **sample); samples++; return OK; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); samples--; return OK; }
int nvmlGpmSampleGet(Gpu *gpu, Sample *sample) {
    COUNTER("sample", gpu);
    sample->gpu = gpu;
    sample->number = ++taken;
    return OK;
}
int nvmlGpmMetricsGet(MetricsGet *wanted) {
    CHECK("metrics", wanted->before->gpu);
    if (wanted->version != 1) return 25;
    if (wanted->before->number >= wanted->after->number) return INVALID;
    for (unsigned place = 0; place < wanted->count; place++) {
        Metric *metric = &wanted->metrics[place];
        metric->result = error(metric->id == 5 ? "tensor" : "bandwidth", wanted->before->gpu);
        metric->value = metric->id == 5 ? 62.5 : metric->id == 10 ? 25.0 : -1.0;
    }
    return OK;
}
