// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_API_H_
#define TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_API_H_

// The part of NCCL's binary interface that the backend uses. It is declared here, so that the backend
// compiles without NCCL and can be tested without a GPU. Numbers and layouts are those of <nccl.h>, 2.14 to
// 2.28; abi_check.cc compares them with the real header if a build finds one.

#include <climits>
#include <cstddef>
#include <cstdint>

namespace tandem::collectives::nccl {

struct Communicator;  // pointed to by ncclComm_t
using Comm = Communicator*;

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class Type : int { kI8 = 0, kU8 = 1, kI32 = 2, kI64 = 4, kF16 = 6, kF32 = 7, kF64 = 8, kBF16 = 9 };

// Numbers from 5 on are made by RedOpCreatePreMulSum.
enum class RedOp : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

struct UniqueId {
  char bytes[128];
};

inline constexpr int kUndefined = INT_MIN;
inline constexpr int kNoColor = -1;

// The beginning of ncclConfig_t. NCCL reads `size` bytes of it, takes the fields that `version` had, and uses
// its own defaults for later fields. So each library receives at most the fields that it knew when it was
// released.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;                   // 2.14
  int cga_cluster_size = kUndefined;  // 2.17, with the three that follow
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;    // 2.18
  int traffic_class = kUndefined;  // later: never read, as `version` says
};
inline constexpr size_t kConfigSize214 =
    offsetof(Config, cga_cluster_size) + sizeof(int);  // with its padding
inline constexpr size_t kConfigSize217 = offsetof(Config, split_share);
inline constexpr int kOldestVersion = 21400;  // the first with non-blocking communicators

// Returns the Config for a library of `version`, at least kOldestVersion.
Config ConfigFor(int version);

// One method for each function; streams are cudaStream_t. As thread-safe as NCCL: one thread at a time for
// each communicator. Optional functions say so.
class NcclApi {
 public:
  virtual ~NcclApi() = default;
  virtual Result GetVersion(int* version) = 0;
  virtual Result GetUniqueId(UniqueId* id) = 0;
  virtual Result CommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) = 0;
  virtual Result CommFinalize(Comm comm) = 0;
  virtual Result CommDestroy(Comm comm) = 0;
  virtual Result CommAbort(Comm comm) = 0;
  virtual Result CommGetAsyncError(Comm comm, Result* error) = 0;
  // Available from 2.18 on; CommSplit returns kInvalidUsage if the library has no such function.
  virtual bool has_split() const = 0;
  virtual Result CommSplit(Comm comm, int color, int key, Comm* made, Config* config) = 0;
  // Available from 2.19 on; they return kInvalidUsage if the library has no such functions.
  virtual bool has_register() const = 0;
  virtual Result CommRegister(Comm comm, void* buffer, size_t bytes, void** handle) = 0;
  virtual Result CommDeregister(Comm comm, void* handle) = 0;
  // These never return nullptr.
  virtual const char* GetErrorString(Result result) = 0;
  virtual const char* GetLastError(Comm comm) = 0;

  virtual Result GroupStart() = 0;
  virtual Result GroupEnd() = 0;
  virtual Result AllReduce(const void* in, void* out, size_t n, Type type, RedOp op, Comm comm,
                           void* stream) = 0;
  virtual Result Reduce(const void* in, void* out, size_t n, Type type, RedOp op, int root, Comm comm,
                        void* stream) = 0;
  virtual Result Broadcast(const void* in, void* out, size_t n, Type type, int root, Comm comm,
                           void* stream) = 0;
  virtual Result AllGather(const void* in, void* out, size_t n_in, Type type, Comm comm, void* stream) = 0;
  virtual Result ReduceScatter(const void* in, void* out, size_t n_out, Type type, RedOp op, Comm comm,
                               void* stream) = 0;
  virtual Result Send(const void* in, size_t n, Type type, int peer, Comm comm, void* stream) = 0;
  virtual Result Recv(void* out, size_t n, Type type, int peer, Comm comm, void* stream) = 0;
  // `factor` points to one element of `type` in host memory.
  virtual Result RedOpCreatePreMulSum(RedOp* op, void* factor, Type type, Comm comm) = 0;
  virtual Result RedOpDestroy(RedOp op, Comm comm) = 0;
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_COLLECTIVES_BACKENDS_NCCL_NCCL_API_H_
