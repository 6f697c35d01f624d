#ifndef TANDEM_COLLECTIVES_OPERATION_H_
#define TANDEM_COLLECTIVES_OPERATION_H_

// One collective or point-to-point operation as a plain value: what ProcessGroup hands to a backend, what the
// flight recorder keeps, and from which the fingerprint is made that ranks compare.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "base/numeric/tensor.h"

namespace tandem::collectives {

// The numbers travel between processes: add, never renumber.
enum class OpKind : uint8_t {
  kAllReduce = 1,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
  kLeave,  // a rank destroys its group: never handed to a backend by ProcessGroup
};

// How values of several ranks become one. kAvg is the sum divided by the number of ranks (integers round
// towards zero). kPremulSum sums factor * value, where each rank gives its own factor (floating point only).
// Bitwise operations are for integers only. Integer sums and products wrap.
enum class ReduceOp : uint8_t { kSum = 0, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor, kPremulSum };

absl::string_view Name(OpKind kind);      // "all_reduce"
absl::string_view Name(ReduceOp reduce);  // "premul_sum"

inline constexpr int kAnySource = -1;

// What one rank gives to, or gets from, one other: `count` elements at `data`.
struct ConstPart {
  const void* data = nullptr;
  size_t count = 0;
};
struct Part {
  void* data = nullptr;
  size_t count = 0;
};

// The buffers of each kind, in elements of `dtype`; P is the world size, r this rank. Unused ones are empty.
//
//   kind             in               out                ins[P]                    outs[P]
//   all_reduce       count            count
//   reduce           count            count, at root
//   broadcast        count, at root   count
//   all_gather       count                                                         outs[s]: rank s's
//   gather           count                                                         at root
//   scatter                           count              at root
//   reduce_scatter                    count              ins[s]: for rank s
//   all_to_all                                           ins[s]: for rank s        outs[s]: from rank s
//   send             count
//   recv                              count
//
// In place means the same address: in.data == out.data; all_gather's and gather's in.data == outs[r].data;
// scatter's and reduce_scatter's out.data == ins[r].data. Broadcast's root has in.data == out.data or an
// empty out. Any other overlap is the caller's error, refused by ProcessGroup where it can be seen.
//
// `even`: all parts have the same count and lie one behind the other, so that ins[0].data / outs[0].data is
// the whole array.
struct Operation {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  bool even = true;
  double factor = 1.0;    // of kPremulSum: this rank's
  int32_t root = 0;       // of rooted kinds; send: the receiver, recv: the sender or kAnySource
  uint32_t tag = 0;       // of send and recv
  uint64_t sequence = 0;  // number in its group, from 0; collectives and point-to-point count apart
  uint64_t context = 0;   // anything else that all ranks must agree upon, as what this is a part of
  Device device;
  ConstPart in;
  Part out;
  absl::Span<const ConstPart> ins;
  absl::Span<const Part> outs;
  absl::Duration timeout = absl::InfiniteDuration();  // from the moment a backend begins
};

// "all_reduce #17 (sum of f32 x 1024)", "send #3 (f32 x 10 to rank 1, tag 7)".
std::string Describe(const Operation& operation);

// What a rank says it is about to do: sent as it lies in memory between machines of little-endian order, and
// compared before any memory of a size that a rank did not expect is touched.
struct Fingerprint {
  uint64_t sequence = 0;
  // Elements: of `in` or `out`; for kinds with parts, of one part where even, of all where uneven. 0 where
  // ranks need not agree (uneven gather, scatter and all_to_all: there, what each pair exchanges is
  // compared).
  uint64_t count = 0;
  uint64_t parts_hash = 0;  // of the counts, where they differ by rank and all ranks must know them, and of
                            // the context; else 0
  int32_t root = 0;
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  uint8_t even = 1;
};
static_assert(sizeof(Fingerprint) == 32);

Fingerprint FingerprintOf(const Operation& operation);
// Whether two ranks may go on together.
bool Agree(const Fingerprint& a, const Fingerprint& b);
// As Describe(Operation). Any bytes that a peer may have sent give some text.
std::string Describe(const Fingerprint& fingerprint);
// "ranks of group 'g' disagree: rank 0 calls ..., rank 1 calls ...; all ranks must call ..."; the lower rank
// first, so that both say the same.
std::string Disagreement(absl::string_view group, int rank_a, const Fingerprint& a, int rank_b,
                         const Fingerprint& b);

// Elements that `operation`, called by rank `rank`, sends to rank `to` / expects from rank `from`, for the
// kinds with parts, and for the root's side of rooted kinds; what uneven operations compare by pair.
size_t CountTo(const Operation& operation, int rank, int to);
size_t CountFrom(const Operation& operation, int rank, int from);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_OPERATION_H_
