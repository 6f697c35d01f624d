#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_OPERATION_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_OPERATION_H_

// What a rank says it is about to do: the head of every message.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "collectives/process_group.h"

namespace tandem::collectives::gloo_group {

enum class OpKind : uint32_t { kAllReduce = 1, kBroadcast, kAllGather, kAllGatherBytes, kBarrier, kLeave };
enum class DType : uint32_t { kByte = 0, kF32, kF64, kI64 };

// Sent as it lies in memory, by and to machines of little-endian order. Plain value.
struct Operation {
  uint64_t magic = 0;  // Mesh::kMagic
  uint64_t sequence = 0;
  uint64_t count = 0;  // elements of `dtype`
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kByte;
  uint32_t reduce = 0;    // ReduceOp, of all_reduce
  int32_t root = 0;       // of broadcast
  char padding[24] = {};  // to 64 bytes: the data behind it is aligned
};
static_assert(sizeof(Operation) == 64);

// Whether two ranks may go on together.
bool Agree(const Operation& a, const Operation& b);
// "all_reduce #17 (sum of f32 x 1024)". Any bytes a peer may have sent give some text.
std::string Describe(const Operation& operation);

}  // namespace tandem::collectives::gloo_group

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_OPERATION_H_
