// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_OPERATION_H_
#define TANDEM_COLLECTIVES_OPERATION_H_

// Operation describes one collective or point-to-point operation as a plain value. ProcessGroup hands it to a
// backend, the flight recorder stores it, and the fingerprint that ranks compare is computed from it.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "base/numeric/tensor.h"

namespace tandem::collectives {

// The numbers travel between processes: add new ones, never renumber.
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
  kLeave,  // a rank destroys its group; ProcessGroup never hands this kind to a backend
};

// How the values of several ranks are combined into one. kAvg is the sum divided by the number of ranks
// (integers round towards zero). kPremulSum sums factor * value, where each rank gives its own factor
// (floating point only). Bitwise operations are for integers only. Integer sums and products wrap.
enum class ReduceOp : uint8_t { kSum = 0, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor, kPremulSum };

// Names as they appear in messages and traces.
absl::string_view Name(OpKind kind);      // "all_reduce"
absl::string_view Name(ReduceOp reduce);  // "premul_sum"

// The source of a recv that accepts a message from any rank.
inline constexpr int kAnySource = -1;

// A buffer that this rank sends to, or receives from, one other rank: `count` elements at `data`.
struct ConstPart {
  const void* data = nullptr;
  size_t count = 0;
};
struct Part {
  void* data = nullptr;
  size_t count = 0;
};

// The buffers that each kind uses, with counts in elements of `dtype`. P is the world size, r is this rank.
// Buffers without an entry are empty.
//
//    kind             in               out                ins[P]                    outs[P]
//    all_reduce       count            count
//    reduce           count            count, at root
//    broadcast        count, at root   count
//    all_gather       count                                                         outs[s]: rank s's
//    gather           count                                                         at root
//    scatter                           count              at root
//    reduce_scatter                    count              ins[s]: for rank s
//    all_to_all                                           ins[s]: for rank s        outs[s]: from rank s
//    send             count
//    recv                              count
//
// An operation is in place if the addresses are the same:
//
//    all_reduce, reduce        in.data == out.data
//    all_gather, gather        in.data == outs[r].data
//    scatter, reduce_scatter   out.data == ins[r].data
//    broadcast (root)          in.data == out.data, or out is empty
//
// Any other overlap is an error of the caller. ProcessGroup refuses it where it can detect it.
//
// `even` means that all parts have the same count and are contiguous, so that ins[0].data / outs[0].data is
// the whole array.
struct Operation {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  bool even = true;
  double factor = 1.0;  // of kPremulSum: this rank's factor
  int32_t root = 0;     // of rooted kinds; send: the receiver, recv: the sender or kAnySource
  uint32_t tag = 0;     // of send and recv
  uint64_t sequence =
      0;  // number in its group, from 0; collectives and point-to-point are counted separately
  // Anything else that all ranks must agree upon, such as the larger operation that this one is a step of.
  uint64_t context = 0;
  Device device;
  // On a GPU: the stream (a cudaStream_t) that produces the buffers. The operation begins after the work that
  // the stream holds when the operation is issued. nullptr: the legacy default stream.
  void* stream = nullptr;
  ConstPart in;
  Part out;
  absl::Span<const ConstPart> ins;
  absl::Span<const Part> outs;
  absl::Duration timeout = absl::InfiniteDuration();  // counts from when the operation begins to run
};

// Returns a description for messages: "all_reduce #17 (sum of f32 x 1024)", "send #3 (f32 x 10 to rank 1, tag
// 7)".
std::string Describe(const Operation& operation);

// A rank's announcement of the operation that it is about to run. Ranks compare fingerprints before they
// touch memory whose size another rank did not expect. The struct is sent as it lies in memory, between
// little-endian machines only.
struct Fingerprint {
  uint64_t sequence = 0;
  // Number of elements:
  //
  //   - kinds with `in` or `out` only: the elements of that buffer
  //   - kinds with parts, even: the elements of one part
  //   - kinds with parts, uneven: the elements of all parts together
  //   - uneven gather, scatter and all_to_all: 0, because ranks need not agree; what each pair exchanges is
  //     compared instead
  uint64_t count = 0;
  // Hash of the counts, where they differ by rank and all ranks must know them, and of the context; else 0.
  uint64_t parts_hash = 0;
  int32_t root = 0;
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  uint8_t even = 1;
};
static_assert(sizeof(Fingerprint) == 32);

Fingerprint FingerprintOf(const Operation& operation);
// Returns true if two ranks with these fingerprints may run the operation together.
bool Agree(const Fingerprint& a, const Fingerprint& b);
// Describes a fingerprint as Describe(Operation) does. Any bytes that a peer may have sent give some text.
std::string Describe(const Fingerprint& fingerprint);
// Returns "ranks of group 'g' disagree: rank 0 calls ..., rank 1 calls ...; all ranks must call ...". The
// lower rank comes first, so that both ranks report the same text.
std::string Disagreement(absl::string_view group, int rank_a, const Fingerprint& a, int rank_b,
                         const Fingerprint& b);

// The number of elements that `operation`, called by rank `rank`, sends to rank `to` (CountTo) or expects
// from rank `from` (CountFrom). Defined for the kinds with parts and for the root's side of rooted kinds.
// Uneven operations compare these counts pair by pair.
size_t CountTo(const Operation& operation, int rank, int to);
size_t CountFrom(const Operation& operation, int rank, int from);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_OPERATION_H_
