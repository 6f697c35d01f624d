// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/dlopen_api.h"

#include <dlfcn.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::collectives::nccl {
namespace {

class Library {
 public:
  static absl::StatusOr<Library> Open(const std::vector<std::string>& names) {
    std::string errors, broken;
    for (const std::string& name : names) {
      if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))
        return Library(name, handle);
      const std::string error = dlerror();
      // "libnccl.so.2: cannot open shared object file: No such file or directory". If the text begins with
      // another name, a library that this one needs is missing.
      const bool missing = absl::StartsWith(error, name) && absl::StrContains(error, "No such file");
      std::string* const list = missing ? &errors : &broken;
      absl::StrAppend(list, list->empty() ? "" : "; ", error);
    }
    const std::string name = names.empty() ? "the library" : names[0];
    if (!broken.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(name, " cannot be loaded: ", broken));
    }
    return absl::FailedPreconditionError(absl::StrCat(name, " not found (", errors, ")"));
  }
  template <typename Function>
  void Find(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, symbol));
    if (*function == nullptr && missing_.empty()) missing_ = symbol;
  }
  template <typename Function>
  void FindOptional(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, symbol));
  }
  absl::Status status() const {
    if (missing_.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(name_, " has no function ", missing_, "; it is too old, or no such library"));
  }
  // Returns the file of the library that has `symbol`.
  std::string path(const char* symbol) const {
    Dl_info info;
    void* const address = dlsym(handle_, symbol);
    const bool found = address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr;
    return found ? info.dli_fname : name_;
  }

 private:
  Library(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  std::string name_;
  void* handle_;  // never closed
  std::string missing_;
};

class DlopenNcclApi final : public NcclApi {
 public:
  explicit DlopenNcclApi(Library* lib) {
    lib->Find("ncclGetVersion", &get_version_);
    lib->Find("ncclGetUniqueId", &get_unique_id_);
    lib->Find("ncclCommInitRankConfig", &comm_init_);
    lib->Find("ncclCommFinalize", &comm_finalize_);
    lib->Find("ncclCommDestroy", &comm_destroy_);
    lib->Find("ncclCommAbort", &comm_abort_);
    lib->Find("ncclCommGetAsyncError", &comm_get_async_error_);
    lib->FindOptional("ncclCommSplit", &comm_split_);
    lib->Find("ncclGetErrorString", &get_error_string_);
    lib->FindOptional("ncclGetLastError", &get_last_error_);
    lib->Find("ncclGroupStart", &group_start_);
    lib->Find("ncclGroupEnd", &group_end_);
    lib->Find("ncclAllReduce", &all_reduce_);
    lib->Find("ncclReduce", &reduce_);
    lib->Find("ncclBroadcast", &broadcast_);
    lib->Find("ncclAllGather", &all_gather_);
    lib->Find("ncclReduceScatter", &reduce_scatter_);
    lib->Find("ncclSend", &send_);
    lib->Find("ncclRecv", &recv_);
    lib->Find("ncclRedOpCreatePreMulSum", &red_op_create_);
    lib->Find("ncclRedOpDestroy", &red_op_destroy_);
  }
  Result GetVersion(int* version) override { return get_version_(version); }
  Result GetUniqueId(UniqueId* id) override { return get_unique_id_(id); }
  Result CommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) override {
    return comm_init_(comm, ranks, id, rank, config);
  }
  Result CommFinalize(Comm comm) override { return comm_finalize_(comm); }
  Result CommDestroy(Comm comm) override { return comm_destroy_(comm); }
  Result CommAbort(Comm comm) override { return comm_abort_(comm); }
  Result CommGetAsyncError(Comm comm, Result* error) override { return comm_get_async_error_(comm, error); }
  bool has_split() const override { return comm_split_ != nullptr; }
  Result CommSplit(Comm comm, int color, int key, Comm* made, Config* config) override {
    return comm_split_ == nullptr ? Result::kInvalidUsage : comm_split_(comm, color, key, made, config);
  }
  const char* GetErrorString(Result result) override { return get_error_string_(result); }
  const char* GetLastError(Comm comm) override {
    const char* text = get_last_error_ == nullptr ? nullptr : get_last_error_(comm);
    return text == nullptr ? "" : text;
  }
  Result GroupStart() override { return group_start_(); }
  Result GroupEnd() override { return group_end_(); }
  Result AllReduce(const void* in, void* out, size_t n, Type type, RedOp op, Comm comm,
                   void* stream) override {
    return all_reduce_(in, out, n, type, op, comm, stream);
  }
  Result Reduce(const void* in, void* out, size_t n, Type type, RedOp op, int root, Comm comm,
                void* stream) override {
    return reduce_(in, out, n, type, op, root, comm, stream);
  }
  Result Broadcast(const void* in, void* out, size_t n, Type type, int root, Comm comm,
                   void* stream) override {
    return broadcast_(in, out, n, type, root, comm, stream);
  }
  Result AllGather(const void* in, void* out, size_t n, Type type, Comm comm, void* stream) override {
    return all_gather_(in, out, n, type, comm, stream);
  }
  Result ReduceScatter(const void* in, void* out, size_t n, Type type, RedOp op, Comm comm,
                       void* stream) override {
    return reduce_scatter_(in, out, n, type, op, comm, stream);
  }
  Result Send(const void* in, size_t n, Type type, int peer, Comm comm, void* stream) override {
    return send_(in, n, type, peer, comm, stream);
  }
  Result Recv(void* out, size_t n, Type type, int peer, Comm comm, void* stream) override {
    return recv_(out, n, type, peer, comm, stream);
  }
  Result RedOpCreatePreMulSum(RedOp* op, void* factor, Type type, Comm comm) override {
    constexpr int kHostImmediate = 1;  // ncclScalarHostImmediate: read before the call returns
    return red_op_create_(op, factor, type, kHostImmediate, comm);
  }
  Result RedOpDestroy(RedOp op, Comm comm) override { return red_op_destroy_(op, comm); }

 private:
  Result (*get_version_)(int*);
  Result (*get_unique_id_)(UniqueId*);
  Result (*comm_init_)(Comm*, int, UniqueId, int, Config*);
  Result (*comm_finalize_)(Comm);
  Result (*comm_destroy_)(Comm);
  Result (*comm_abort_)(Comm);
  Result (*comm_get_async_error_)(Comm, Result*);
  Result (*comm_split_)(Comm, int, int, Comm*, Config*);
  const char* (*get_error_string_)(Result);
  const char* (*get_last_error_)(Comm);
  Result (*group_start_)();
  Result (*group_end_)();
  Result (*all_reduce_)(const void*, void*, size_t, Type, RedOp, Comm, void*);
  Result (*reduce_)(const void*, void*, size_t, Type, RedOp, int, Comm, void*);
  Result (*broadcast_)(const void*, void*, size_t, Type, int, Comm, void*);
  Result (*all_gather_)(const void*, void*, size_t, Type, Comm, void*);
  Result (*reduce_scatter_)(const void*, void*, size_t, Type, RedOp, Comm, void*);
  Result (*send_)(const void*, size_t, Type, int, Comm, void*);
  Result (*recv_)(void*, size_t, Type, int, Comm, void*);
  Result (*red_op_create_)(RedOp*, void*, Type, int, Comm);
  Result (*red_op_destroy_)(RedOp, Comm);
};

class DlopenCudaApi final : public CudaApi {
 public:
  explicit DlopenCudaApi(Library* lib) {
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
  int (*memcpy_async_)(void*, const void*, size_t, int, void*);
  const char* (*get_error_string_)(int);
  int (*get_last_error_)();
  int (*stream_is_capturing_)(void*, int*);
  int (*exchange_capture_mode_)(int*);
  int (*pointer_get_attributes_)(void*, const void*);
};

}  // namespace

Config ConfigFor(int version) {
  Config config;
  if (version < 21700) {
    config.size = kConfigSize214;
    config.version = 21400;
  } else if (version < 21800) {
    config.size = kConfigSize217;
    config.version = 21700;
  }
  return config;
}

absl::StatusOr<Loaded<NcclApi>> LoadNccl(const std::vector<std::string>& names) {
  TANDEM_ASSIGN_OR_RETURN(Library library, Library::Open(names));
  auto api = std::make_shared<DlopenNcclApi>(&library);
  TANDEM_RETURN_IF_ERROR(library.status());
  return Loaded<NcclApi>{std::move(api), library.path("ncclGetVersion")};
}

absl::StatusOr<Loaded<CudaApi>> LoadCuda(const std::vector<std::string>& names) {
  TANDEM_ASSIGN_OR_RETURN(Library library, Library::Open(names));
  auto api = std::make_shared<DlopenCudaApi>(&library);
  TANDEM_RETURN_IF_ERROR(library.status());
  return Loaded<CudaApi>{std::move(api), library.path("cudaGetDeviceCount")};
}

absl::StatusOr<Loaded<NcclApi>> LoadNccl() { return LoadNccl(NcclCandidates(PlacesOfThisProcess())); }

absl::StatusOr<Loaded<CudaApi>> LoadCuda() {
  return ChooseCudart(CudartCandidates(PlacesOfThisProcess()),
                      [](const std::string& name) { return LoadCuda(std::vector<std::string>{name}); });
}

absl::StatusOr<Apis> LoadApis() {
  TANDEM_ASSIGN_OR_RETURN(Loaded<NcclApi> nccl, LoadNccl());
  TANDEM_ASSIGN_OR_RETURN(Loaded<CudaApi> cuda, LoadCuda());
  return Apis{std::move(nccl.api), std::move(cuda.api)};
}

}  // namespace tandem::collectives::nccl
