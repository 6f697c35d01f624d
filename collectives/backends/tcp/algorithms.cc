// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/algorithms.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/status.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives::tcp {
namespace {

// Vectors up to this size are reduced whole by every rank (divided by the number of peers that send them).
// Between two ranks that is the same traffic in half the messages, so the limit is where reducing twice costs
// more.
constexpr size_t kOneShotBytes = 256 << 10;
constexpr size_t kOneShotBytesOfTwo = 1 << 20;
// Broadcasts and reductions above this are spread over the ranks.
constexpr size_t kSpreadBytes = 256 << 10;
// All-reduce: how far one peer may send ahead of its reduction; small enough to stay in the caches.
constexpr size_t kRingBytes = 3 * kChunkBytes;
constexpr std::align_val_t kAlignment{64};

void Copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

// A running collective.
class Run {
 public:
  Run(const Operation& op, int rank, int world_size, absl::Time deadline, Exchange* exchange,
      Scratch* scratch)
      : op_(op),
        rank_(rank),
        world_(world_size),
        size_(SizeOf(op.dtype)),
        deadline_(deadline),
        exchange_(exchange),
        scratch_(scratch),
        lanes_(world_size) {}

  bool AllReduce();
  bool Reduce();
  bool Broadcast();
  bool ReduceScatter();
  // Runs all kinds in which every part goes directly from its rank to its rank.
  bool Direct();

 private:
  // The bytes [begin, begin + bytes) of the vector, which rank `index` of `chunks` reduces.
  struct Slice {
    size_t begin, bytes;
  };
  Slice SliceOf(size_t index, size_t chunks, size_t count) const {
    const size_t base = count / chunks, longer = count % chunks;
    return {(index * base + std::min(index, longer)) * size_, (base + (index < longer ? 1 : 0)) * size_};
  }
  template <typename Body>
  void ForEachPeer(Body body) const {
    for (int step = 1; step < world_; ++step) body((rank_ + step) % world_);
  }
  bool Begin() { return exchange_->Begin(FingerprintOf(op_), op_.factor, lanes_, deadline_); }

  // Reduces `bytes` bytes at `offset` of each rank's contribution: `own` is this rank's, the others' are in
  // their lanes.
  void ReduceAt(size_t offset, size_t bytes, const char* own, char* out);
  // Waits for the data of phase 0 in the lanes, and reduces it chunk by chunk. `sent`: `own` is `out`, and is
  // being sent.
  bool ReduceAll(size_t bytes, const char* own, char* out, bool sent);
  bool ReduceWhole(bool everywhere);
  bool ReduceSlices(bool everywhere);

  const Operation& op_;
  const int rank_;
  const int world_;
  const size_t size_;
  const absl::Time deadline_;
  Exchange* const exchange_;
  Scratch* const scratch_;
  std::vector<Lane> lanes_;
  std::vector<const void*> sources_;
  std::vector<double> factors_;
};

void Run::ReduceAt(size_t offset, size_t bytes, const char* own, char* out) {
  sources_.resize(world_);
  sources_[rank_] = own + offset;
  ForEachPeer([&](int p) {
    const Lane& lane = lanes_[p];
    sources_[p] = lane.receive + (lane.ring > 0 ? offset % lane.ring : offset);
  });
  if (op_.reduce == ReduceOp::kPremulSum && factors_.empty()) factors_ = exchange_->factors();
  ReduceInRankOrder(op_.reduce, op_.dtype, sources_, factors_, world_, bytes / size_, out + offset);
}

bool Run::ReduceAll(size_t bytes, const char* own, char* out, bool sent) {
  for (size_t offset = 0; offset < bytes; offset += kChunkBytes) {
    const size_t chunk = std::min(kChunkBytes, bytes - offset);
    if (!exchange_->AwaitReceived(0, offset + chunk)) return false;
    for (int p = 0; sent && p < world_; ++p) {
      if (p != rank_ && !exchange_->AwaitSent(p, offset + chunk)) return false;
    }
    ReduceAt(offset, chunk, own, out);
  }
  return exchange_->Finish();
}

// Sends every vector to every rank, or to the root.
bool Run::ReduceWhole(bool everywhere) {
  const size_t bytes = op_.in.count * size_;
  const char* in = static_cast<const char*>(op_.in.data);
  char* out = static_cast<char*>(op_.out.data);
  const bool receives = everywhere || rank_ == op_.root;
  // Between two ranks, the other's vector can be received into the result's buffer.
  const bool in_out = world_ == 2 && in != out;
  char* landing_at = receives && !in_out ? scratch_->Get(bytes * (world_ - 1)) : out;
  ForEachPeer([&](int p) {
    Lane& lane = lanes_[p];
    if (everywhere || p == op_.root) lane.send = in, lane.send_bytes = bytes;
    if (!receives) return;
    lane.receive = landing_at;
    lane.receive_bytes = bytes;
    landing_at += bytes;
  });
  if (!Begin()) return false;
  return receives ? ReduceAll(bytes, in, out, everywhere && in == out) : exchange_->Finish();
}

// Each rank reduces a slice and sends it to all ranks, or to the root.
bool Run::ReduceSlices(bool everywhere) {
  const size_t count = op_.in.count;
  const char* in = static_cast<const char*>(op_.in.data);
  char* out = static_cast<char*>(op_.out.data);
  const Slice mine = SliceOf(rank_, world_, count);
  const bool keeps = everywhere || rank_ == op_.root;
  // The returned bytes tell how much of the ring is free; only an all-reduce returns bytes to all.
  const size_t ring = everywhere && SliceOf(0, world_, count).bytes > kRingBytes ? kRingBytes : 0;
  const size_t landing = ring > 0 ? ring : mine.bytes;
  char* landing_at = scratch_->Get(landing * (world_ - 1) + (keeps ? 0 : mine.bytes));
  ForEachPeer([&](int p) {
    const Slice theirs = SliceOf(p, world_, count);
    Lane& lane = lanes_[p];
    lane.send = in + theirs.begin;
    lane.send_bytes = theirs.bytes;
    lane.receive = landing_at;
    lane.receive_bytes = mine.bytes;
    lane.ring = ring;
    landing_at += landing;
    if (keeps) lane.receive2 = out + theirs.begin, lane.receive2_bytes = theirs.bytes;
    if (everywhere || p == op_.root) lane.send2_bytes = mine.bytes;
  });
  if (!Begin()) return false;
  char* const result = keeps ? out + mine.begin : landing_at;
  for (size_t offset = 0; offset < mine.bytes; offset += kChunkBytes) {
    const size_t chunk = std::min(kChunkBytes, mine.bytes - offset);
    if (!exchange_->AwaitReceived(0, offset + chunk)) return false;
    ReduceAt(offset, chunk, in + mine.begin, result);
    ForEachPeer([&](int p) {
      if (lanes_[p].send2_bytes > 0) exchange_->SendMore(p, result + offset, chunk);
    });
  }
  return exchange_->Finish();
}

bool Run::AllReduce() {
  const size_t bytes = op_.in.count * size_;
  const size_t whole = world_ == 2 ? kOneShotBytesOfTwo : kOneShotBytes / (world_ - 1);
  return bytes <= whole ? ReduceWhole(true) : ReduceSlices(true);
}

bool Run::Reduce() {
  const size_t bytes = op_.in.count * size_;
  return world_ == 2 || bytes <= kSpreadBytes ? ReduceWhole(false) : ReduceSlices(false);
}

bool Run::Broadcast() {
  const bool is_root = rank_ == op_.root;
  const size_t count = is_root ? std::max(op_.in.count, op_.out.count) : op_.out.count;
  const size_t bytes = count * size_;
  const char* in = static_cast<const char*>(op_.in.data != nullptr ? op_.in.data : op_.out.data);
  char* out = static_cast<char*>(op_.out.data);
  const bool spread = world_ > 2 && bytes > kSpreadBytes;
  // The slice that is sent to rank p first.
  auto slice = [&](int p) {
    if (!spread) return Slice{0, bytes};
    return SliceOf((p - op_.root - 1 + world_) % world_, world_ - 1, count);
  };
  ForEachPeer([&](int p) {
    Lane& lane = lanes_[p];
    if (is_root) {
      lane.send = in + slice(p).begin;
      lane.send_bytes = slice(p).bytes;
    } else if (p == op_.root) {
      lane.receive = out + slice(rank_).begin;
      lane.receive_bytes = slice(rank_).bytes;
    } else if (spread) {
      lane.receive2 = out + slice(p).begin;
      lane.receive2_bytes = slice(p).bytes;
      lane.send2_bytes = slice(rank_).bytes;
    }
  });
  if (!Begin()) return false;
  if (is_root && op_.out.count > 0) Copy(out, in, bytes);
  if (is_root || !spread) return exchange_->Finish();
  if (!exchange_->AwaitHeads()) return false;
  const Slice mine = slice(rank_);
  for (size_t offset = 0; offset < mine.bytes; offset += kChunkBytes) {
    const size_t chunk = std::min(kChunkBytes, mine.bytes - offset);
    if (!exchange_->AwaitReceivedFrom(op_.root, 0, offset + chunk)) return false;
    ForEachPeer([&](int p) {
      if (p != op_.root) exchange_->SendMore(p, out + mine.begin + offset, chunk);
    });
  }
  return exchange_->Finish();
}

bool Run::ReduceScatter() {
  const size_t bytes = op_.out.count * size_;
  char* out = static_cast<char*>(op_.out.data);
  const char* own = static_cast<const char*>(op_.ins[rank_].data);
  char* landing_at = world_ == 2 && own != out ? out : scratch_->Get(bytes * (world_ - 1));
  ForEachPeer([&](int p) {
    Lane& lane = lanes_[p];
    lane.send = static_cast<const char*>(op_.ins[p].data);
    lane.send_bytes = op_.ins[p].count * size_;
    lane.receive = landing_at;
    lane.receive_bytes = bytes;
    landing_at += bytes;
  });
  return Begin() && ReduceAll(bytes, own, out, false);
}

bool Run::Direct() {
  // The fingerprint does not cover what only a pair of ranks must agree upon. So that all ranks learn of a
  // pair that disagrees, each rank tells all others when its own pairs agree.
  const bool by_pairs = !op_.even && (op_.kind == OpKind::kGather || op_.kind == OpKind::kScatter ||
                                      op_.kind == OpKind::kAllToAll);
  char* const agreed = by_pairs ? scratch_->Get(world_) : nullptr;  // one byte from each rank
  ForEachPeer([&](int p) {
    Lane& lane = lanes_[p];
    if (by_pairs) {
      lane.receive2 = agreed + p;
      lane.receive2_bytes = lane.send2_bytes = 1;
    }
    lane.send_bytes = CountTo(op_, rank_, p) * size_;
    lane.receive_bytes = CountFrom(op_, rank_, p) * size_;
    const bool in_parts = op_.kind == OpKind::kScatter || op_.kind == OpKind::kAllToAll;
    const bool out_parts = op_.kind != OpKind::kScatter;
    if (lane.send_bytes > 0) {
      lane.send = static_cast<const char*>(in_parts ? op_.ins[p].data : op_.in.data);
    }
    if (lane.receive_bytes > 0) {
      lane.receive = static_cast<char*>(out_parts ? op_.outs[p].data : op_.out.data);
    }
  });
  if (!Begin()) return false;
  if (by_pairs) {
    if (!exchange_->AwaitHeads()) return false;
    ForEachPeer([&](int p) { exchange_->SendMore(p, agreed + rank_, 1); });
  }
  // Copies this rank's own part while the others' are being transferred.
  const bool is_root = rank_ == op_.root;
  if (op_.kind == OpKind::kAllGather || (op_.kind == OpKind::kGather && is_root)) {
    Copy(op_.outs[rank_].data, op_.in.data, op_.in.count * size_);
  } else if (op_.kind == OpKind::kAllToAll) {
    Copy(op_.outs[rank_].data, op_.ins[rank_].data, op_.ins[rank_].count * size_);
  } else if (op_.kind == OpKind::kScatter && is_root) {
    Copy(op_.out.data, op_.ins[rank_].data, op_.out.count * size_);
  }
  return exchange_->Finish();
}

}  // namespace

void Scratch::Free::operator()(char* memory) const { ::operator delete(memory, kAlignment); }

char* Scratch::Get(size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();  // first: the old and the new block need not fit together
    bytes_ = 0;
    memory_.reset(static_cast<char*>(::operator new(bytes, kAlignment)));
    bytes_ = bytes;
  }
  return memory_.get();
}

bool RunCollective(const Operation& operation, int rank, int world_size, absl::Time deadline,
                   Exchange* exchange, Scratch* scratch) {
  Run run(operation, rank, world_size, deadline, exchange, scratch);
  switch (operation.kind) {
    case OpKind::kAllReduce:
      return run.AllReduce();
    case OpKind::kReduce:
      return run.Reduce();
    case OpKind::kBroadcast:
      return run.Broadcast();
    case OpKind::kReduceScatter:
      return run.ReduceScatter();
    default:
      return run.Direct();
  }
}

void RunAlone(const Operation& o) {
  const size_t size = SizeOf(o.dtype);
  auto reduce = [&o](const ConstPart& in) {
    const std::vector<double> factors(o.reduce == ReduceOp::kPremulSum ? 1 : 0, o.factor);
    const void* source = in.data;
    if (in.count > 0) {
      ReduceInRankOrder(o.reduce, o.dtype, absl::MakeConstSpan(&source, 1), factors, 1, in.count, o.out.data);
    }
  };
  switch (o.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return reduce(o.in);
    case OpKind::kReduceScatter:
      return reduce(o.ins[0]);
    case OpKind::kBroadcast:
      return Copy(o.out.data, o.in.data, std::min(o.in.count, o.out.count) * size);
    case OpKind::kAllGather:
    case OpKind::kGather:
      return Copy(o.outs[0].data, o.in.data, o.in.count * size);
    case OpKind::kScatter:
      return Copy(o.out.data, o.ins[0].data, o.out.count * size);
    case OpKind::kAllToAll:
      return Copy(o.outs[0].data, o.ins[0].data, o.ins[0].count * size);
    default:
      return;
  }
}

}  // namespace tandem::collectives::tcp
