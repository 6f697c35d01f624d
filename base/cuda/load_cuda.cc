// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/load_cuda.h"

#include <dlfcn.h>

#include <memory>
#include <utility>

#include "base/cuda/dynamic_library.h"
#include "base/status.h"

namespace tandem::cuda {
namespace {

class DlopenCudaApi final : public CudaApi {
 public:
  explicit DlopenCudaApi(DynamicLibrary* lib) {
    lib->Find("cudaGetDeviceCount", &get_device_count_);
    lib->Find("cudaRuntimeGetVersion", &runtime_get_version_);
    lib->Find("cudaGetDevice", &get_device_);
    lib->Find("cudaSetDevice", &set_device_);
    lib->Find("cudaStreamCreateWithFlags", &stream_create_);
    lib->Find("cudaStreamDestroy", &stream_destroy_);
    lib->Find("cudaStreamWaitEvent", &stream_wait_event_);
    lib->Find("cudaEventCreateWithFlags", &event_create_);
    lib->Find("cudaEventDestroy", &event_destroy_);
    lib->Find("cudaEventRecord", &event_record_);
    lib->Find("cudaEventQuery", &event_query_);
    lib->Find("cudaMalloc", &malloc_);
    lib->Find("cudaFree", &free_);
    lib->Find("cudaHostAlloc", &host_alloc_);
    lib->Find("cudaFreeHost", &free_host_);
    lib->Find("cudaMemcpyAsync", &memcpy_async_);
    lib->Find("cudaGetErrorString", &get_error_string_);
    lib->Find("cudaGetLastError", &get_last_error_);
    lib->Find("cudaStreamIsCapturing", &stream_is_capturing_);
    lib->Find("cudaThreadExchangeStreamCaptureMode", &exchange_capture_mode_);
    lib->Find("cudaPointerGetAttributes", &pointer_get_attributes_);
  }
  int RuntimeGetVersion(int* version) override { return runtime_get_version_(version); }
  int GetDeviceCount(int* count) override { return get_device_count_(count); }
  int GetDevice(int* device) override { return get_device_(device); }
  int SetDevice(int device) override { return set_device_(device); }
  bool HasPrimaryContext(int device) override {
    // A function of the driver, which the runtime has loaded; CUdevice is the number of the device.
    using GetState = int (*)(int device, unsigned* flags, int* active);
    static const GetState get_state = [] {
      void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      return driver == nullptr ? nullptr
                               : reinterpret_cast<GetState>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
    }();
    unsigned flags = 0;
    int active = 0;
    return get_state != nullptr && get_state(device, &flags, &active) == 0 && active != 0;
  }
  int GetLastError() override { return get_last_error_(); }
  int StreamCreateNonBlocking(void** stream) override { return stream_create_(stream, 1); }
  int StreamDestroy(void* stream) override { return stream_destroy_(stream); }
  int StreamWaitEvent(void* stream, void* event) override { return stream_wait_event_(stream, event, 0); }
  int EventCreate(void** event) override { return event_create_(event, 2); }  // cudaEventDisableTiming
  int EventDestroy(void* event) override { return event_destroy_(event); }
  int EventRecord(void* event, void* stream) override { return event_record_(event, stream); }
  int EventQuery(void* event) override { return event_query_(event); }
  int StreamIsCapturing(void* stream, bool* capturing) override {
    int status = 0;  // cudaStreamCaptureStatusNone
    const int error = stream_is_capturing_(stream, &status);
    *capturing = status != 0;
    return error;
  }
  int ExchangeCaptureMode(int* mode) override { return exchange_capture_mode_(mode); }
  int PointerGetAttributes(const void* pointer, MemoryKind* kind, int* device) override {
    // cudaPointerAttributes begins with type and device; abi_check.cc compares it with this buffer.
    alignas(8) int attributes[64] = {};
    const int error = pointer_get_attributes_(attributes, pointer);
    *kind = static_cast<MemoryKind>(attributes[0]);
    *device = attributes[1];
    return error;
  }
  int Malloc(void** memory, size_t bytes) override { return malloc_(memory, bytes); }
  int Free(void* memory) override { return free_(memory); }
  int HostAlloc(void** memory, size_t bytes) override {
    return host_alloc_(memory, bytes, 1);  // cudaHostAllocPortable
  }
  int FreeHost(void* memory) override { return free_host_(memory); }
  int MemcpyAsync(void* to, const void* from, size_t bytes, void* stream) override {
    return memcpy_async_(to, from, bytes, 4, stream);  // cudaMemcpyDefault
  }
  const char* GetErrorString(int error) override { return get_error_string_(error); }

 private:
  int (*runtime_get_version_)(int*);
  int (*get_device_count_)(int*);
  int (*get_device_)(int*);
  int (*set_device_)(int);
  int (*stream_create_)(void**, unsigned);
  int (*stream_destroy_)(void*);
  int (*stream_wait_event_)(void*, void*, unsigned);
  int (*event_create_)(void**, unsigned);
  int (*event_destroy_)(void*);
  int (*event_record_)(void*, void*);
  int (*event_query_)(void*);
  int (*malloc_)(void**, size_t);
  int (*free_)(void*);
  int (*host_alloc_)(void**, size_t, unsigned);
  int (*free_host_)(void*);
  int (*memcpy_async_)(void*, const void*, size_t, int, void*);
  const char* (*get_error_string_)(int);
  int (*get_last_error_)();
  int (*stream_is_capturing_)(void*, int*);
  int (*exchange_capture_mode_)(int*);
  int (*pointer_get_attributes_)(void*, const void*);
};

}  // namespace

absl::StatusOr<Loaded<CudaApi>> LoadCuda(const std::vector<std::string>& names) {
  TANDEM_ASSIGN_OR_RETURN(DynamicLibrary library, DynamicLibrary::Open(names));
  auto api = std::make_shared<DlopenCudaApi>(&library);
  TANDEM_RETURN_IF_ERROR(library.status());
  return Loaded<CudaApi>{std::move(api), library.path("cudaGetDeviceCount")};
}

absl::StatusOr<Loaded<CudaApi>> LoadCuda() {
  return ChooseCudart(CudartCandidates(PlacesOfThisProcess()),
                      [](const std::string& name) { return LoadCuda(std::vector<std::string>{name}); });
}

}  // namespace tandem::cuda
