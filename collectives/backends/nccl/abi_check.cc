// SPDX-License-Identifier: Apache-2.0
// Compares nccl_api.h with the header of the real library. Compiled only if it is found, and not part of any
// library.

#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "collectives/backends/nccl/nccl_api.h"

namespace tandem::collectives::nccl {

#define SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SAME(Result::kSuccess, ncclSuccess);
SAME(Result::kUnhandledCudaError, ncclUnhandledCudaError);
SAME(Result::kSystemError, ncclSystemError);
SAME(Result::kInternalError, ncclInternalError);
SAME(Result::kInvalidArgument, ncclInvalidArgument);
SAME(Result::kInvalidUsage, ncclInvalidUsage);
SAME(Result::kRemoteError, ncclRemoteError);
SAME(Result::kInProgress, ncclInProgress);
SAME(Type::kI8, ncclInt8);
SAME(Type::kU8, ncclUint8);
SAME(Type::kI32, ncclInt32);
SAME(Type::kI64, ncclInt64);
SAME(Type::kF16, ncclFloat16);
SAME(Type::kF32, ncclFloat32);
SAME(Type::kF64, ncclFloat64);
SAME(Type::kBF16, ncclBfloat16);
SAME(RedOp::kSum, ncclSum);
SAME(RedOp::kProduct, ncclProd);
SAME(RedOp::kMax, ncclMax);
SAME(RedOp::kMin, ncclMin);
SAME(RedOp::kAvg, ncclAvg);
SAME(kUndefined, NCCL_CONFIG_UNDEF_INT);
SAME(kNoColor, NCCL_SPLIT_NOCOLOR);
SAME(1, ncclScalarHostImmediate);
static_assert(sizeof(Result) == sizeof(ncclResult_t) && sizeof(Type) == sizeof(ncclDataType_t) &&
              sizeof(RedOp) == sizeof(ncclRedOp_t));
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && std::is_trivially_copyable_v<UniqueId>);

#define SAME_PLACE(ours, theirs)                                            \
  static_assert(offsetof(Config, ours) == offsetof(ncclConfig_t, theirs) && \
                sizeof(Config::ours) == sizeof(ncclConfig_t::theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
SAME_PLACE(traffic_class, trafficClass);
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
static_assert(
    std::is_same_v<decltype(&ncclCommRegister), ncclResult_t (*)(const ncclComm_t, void*, size_t, void**)>);
static_assert(std::is_same_v<decltype(&ncclCommDeregister), ncclResult_t (*)(ncclComm_t, void*)>);
#endif

}  // namespace tandem::collectives::nccl
