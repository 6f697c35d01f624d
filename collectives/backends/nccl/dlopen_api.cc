// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/dlopen_api.h"

#include "base/cuda/dynamic_library.h"
#include "base/cuda/library_search.h"
#include "base/cuda/load_cuda.h"
#include "base/status.h"

namespace tandem::collectives::nccl {
namespace {

class DlopenNcclApi final : public NcclApi {
 public:
  explicit DlopenNcclApi(cuda::DynamicLibrary* lib) {
    lib->Find("ncclGetVersion", &get_version_);
    lib->Find("ncclGetUniqueId", &get_unique_id_);
    lib->Find("ncclCommInitRankConfig", &comm_init_);
    lib->Find("ncclCommFinalize", &comm_finalize_);
    lib->Find("ncclCommDestroy", &comm_destroy_);
    lib->Find("ncclCommAbort", &comm_abort_);
    lib->Find("ncclCommGetAsyncError", &comm_get_async_error_);
    lib->FindOptional("ncclCommSplit", &comm_split_);
    lib->FindOptional("ncclCommRegister", &comm_register_);
    lib->FindOptional("ncclCommDeregister", &comm_deregister_);
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
  bool has_register() const override { return comm_register_ != nullptr && comm_deregister_ != nullptr; }
  Result CommRegister(Comm comm, void* buffer, size_t bytes, void** handle) override {
    return has_register() ? comm_register_(comm, buffer, bytes, handle) : Result::kInvalidUsage;
  }
  Result CommDeregister(Comm comm, void* handle) override {
    return has_register() ? comm_deregister_(comm, handle) : Result::kInvalidUsage;
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
  Result (*comm_register_)(Comm, void*, size_t, void**);
  Result (*comm_deregister_)(Comm, void*);
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

absl::StatusOr<cuda::Loaded<NcclApi>> LoadNccl(const std::vector<std::string>& names) {
  TANDEM_ASSIGN_OR_RETURN(cuda::DynamicLibrary library, cuda::DynamicLibrary::Open(names));
  auto api = std::make_shared<DlopenNcclApi>(&library);
  TANDEM_RETURN_IF_ERROR(library.status());
  return cuda::Loaded<NcclApi>{std::move(api), library.path("ncclGetVersion")};
}

absl::StatusOr<cuda::Loaded<NcclApi>> LoadNccl() {
  return LoadNccl(cuda::LibraryCandidates(cuda::PlacesOfThisProcess(), "libnccl.so.2"));
}

absl::StatusOr<Apis> LoadApis() {
  TANDEM_ASSIGN_OR_RETURN(cuda::Loaded<NcclApi> nccl, LoadNccl());
  TANDEM_ASSIGN_OR_RETURN(cuda::Loaded<cuda::CudaApi> cuda, cuda::LoadCuda());
  return Apis{std::move(nccl.api), std::move(cuda.api)};
}

}  // namespace tandem::collectives::nccl
