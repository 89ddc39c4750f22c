// Stands in for libcuda.so where there is no GPU: the prototypes are those of cuda.h, so a launch
// that reaches the kernel below was passed as the real driver would have to be. The one kernel is
// out = x + y * scale over n elements, with two scratch pointers behind its parameters.
#include <cuda.h>
#include <cstring>

namespace {
thread_local CUcontext stack[8];
thread_local int depth = 0;
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
char contexts[2];
struct Function { CUcontext context; } functions[2];
const size_t sizes[] = {8, 8, 8, 8, 4, 8, 8};
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }
CUcontext current() { return depth ? stack[depth - 1] : nullptr; }
}  // namespace

extern "C" {
int fake_devices = 1, fake_shared = 0, fake_limit = 232448, fake_launches = 0, fake_relaxed = 0;
int fake_non_portable = 0;
CUlaunchConfig fake_config;
CUlaunchAttribute fake_attribute, fake_last_attribute;
void fake_push(int device) { stack[depth++] = context_of(device); }
int fake_depth() { return depth; }
int fake_current() { return current() ? (current() == context_of(0) ? 0 : 1) : -1; }
int fake_mode() { return mode; }

CUresult CUDAAPI cuInit(unsigned int) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuGetErrorString(CUresult, const char **text) {
  *text = "as the fake says";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return ordinal < fake_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult CUDAAPI cuDeviceGetCount(int *count) {
  *count = fake_devices;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    return CUDA_ERROR_INVALID_VALUE;
  *value = fake_limit;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context) {
  *context = current();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  if (!depth) depth = 1;
  stack[depth - 1] = context;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  stack[depth++] = context;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context) {
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack[--depth];
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *wanted) {
  CUstreamCaptureMode before = mode;
  mode = *wanted;
  *wanted = before;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) {
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  fake_relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
  if (std::memcmp(image, "\x7f" "ELF\0tail", 9)) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(current());
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  if (std::strcmp(name, "add")) return CUDA_ERROR_NOT_FOUND;
  auto context = reinterpret_cast<CUcontext>(module);
  Function &found = functions[context == context_of(1)];
  found.context = context;
  *function = reinterpret_cast<CUfunction>(&found);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction) {
  *value = 0;
  return attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) fake_shared = value;
  else if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) fake_non_portable = value;
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                              const CUlaunchConfig *config) {
  if (current() != reinterpret_cast<Function *>(function)->context) return CUDA_ERROR_INVALID_CONTEXT;
  if (config->numAttrs != 1 || config->attrs->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    return CUDA_ERROR_INVALID_VALUE;
  fake_config = *config;
  *clusters = 120 / config->attrs->value.clusterDim.x;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction, size_t index, size_t *offset, size_t *size) {
  if (index >= sizeof(sizes) / sizeof(*sizes)) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *size = sizes[index];
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                                  void **extra) {
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (current() != reinterpret_cast<Function *>(function)->context) return CUDA_ERROR_INVALID_HANDLE;
  if (config->hStream == reinterpret_cast<CUstream>(0xbad)) return CUDA_ERROR_INVALID_HANDLE;
  if (extra || *static_cast<void **>(params[5]) || *static_cast<void **>(params[6]))
    return CUDA_ERROR_INVALID_VALUE;
  fake_config = *config;
  if (config->numAttrs) {
    fake_attribute = *config->attrs;
    fake_last_attribute = config->attrs[config->numAttrs - 1];
  }
  ++fake_launches;
  auto x = *static_cast<const float **>(params[0]), y = *static_cast<const float **>(params[1]);
  auto out = *static_cast<float **>(params[2]);
  long long count = *static_cast<long long *>(params[3]);
  long long reach = 1LL * config->gridDimX * config->blockDimX * 8;
  for (long long i = 0; i < count && i < reach; ++i)
    out[i] = x[i] + y[i] * *static_cast<float *>(params[4]);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared, CUstream stream, void **params,
                                void **extra) {
  CUlaunchConfig config{};
  config.gridDimX = grid_x, config.gridDimY = grid_y, config.gridDimZ = grid_z;
  config.blockDimX = block_x, config.blockDimY = block_y, config.blockDimZ = block_z;
  config.sharedMemBytes = shared, config.hStream = stream;
  return cuLaunchKernelEx(&config, function, params, extra);
}
}
