// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/backends/hierarchical/levels.h"
#include "collectives/backends/hierarchical/topology.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"

namespace tandem::collectives {
namespace hierarchical {
namespace {

void Copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
}

// Elements of an all-reduce or reduction that are widened to f32 at a time. It bounds the memory for them.
constexpr size_t kWidenedCount = size_t{4} << 20;

// Returns true if partial results of a reduction need more digits, or a larger range, than its dtype has.
bool Widens(const Operation& operation) {
  return Reduces(operation.kind) && (operation.dtype == DType::kF16 || operation.dtype == DType::kBF16) &&
         operation.reduce != ReduceOp::kMin && operation.reduce != ReduceOp::kMax;
}

// Memory that is reused by later operations.
class Scratch {
 public:
  char* Get(size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();  // first: the old and the new block need not fit together
      memory_.reset(new char[bytes]);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  size_t bytes_ = 0;
};

class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(const BackendOptions& options, std::string name)
      : name_(std::move(name)),
        rank_(options.rank),
        world_size_(options.world_size),
        levels_(options),
        topology_(levels_.topology),
        host_(topology_.host_of[rank_]),
        local_(topology_.local_of[rank_]),
        is_leader_(local_ == 0) {}

  absl::Status Connect(const BackendOptions& options, const BackendFactory& inner,
                       const BackendFactory& outer) {
    return levels_.Connect(options, inner, outer);
  }

  absl::string_view name() const override { return name_; }

  absl::Status Supports(const Operation& operation) const override {
    absl::Status status;
    if (operation.device.kind != Device::Kind::kCpu) {
      status = absl::UnimplementedError("memory of another device than the CPU");
    } else if (Reduces(operation.kind)) {
      status = SupportsReduction(operation.reduce, operation.dtype);
    }
    return Annotate(status, absl::StrCat("backend ", name_, ", ", Name(operation.kind)));
  }

  absl::Status Run(const Operation& operation) override {
    TANDEM_RETURN_IF_ERROR(levels_.error());
    TANDEM_RETURN_IF_ERROR(Supports(operation));
    TANDEM_RETURN_IF_ERROR(CheckCollective(operation, rank_, world_size_));
    op_ = &operation;
    size_ = SizeOf(operation.dtype);
    widens_ = Widens(operation);
    partial_dtype_ = widens_ ? DType::kF32 : operation.dtype;
    levels_.Begin(operation);
    const absl::Status status = RunParts();
    levels_.End();
    return status;
  }

  void StartPointToPoint(const Operation& operation, Done done) override {
    absl::Status status = levels_.error();
    if (status.ok() && operation.tag == Levels::kAlarmTag) {
      status = absl::InvalidArgumentError(
          absl::StrCat(Describe(operation), ": backend ", name_, " keeps this tag for itself"));
    }
    if (!status.ok()) return done(status);
    levels_.mesh.backend->StartPointToPoint(
        operation, [this, operation, done = std::move(done)](absl::StatusOr<int> source) {
          done(source.ok() ? source : HandleMessageFailure(operation, source.status()));
        });
  }

  void Abort(const absl::Status& reason) override {
    levels_.Abort(reason.ok() ? absl::AbortedError("aborted") : reason);
  }

 private:
  absl::Status RunParts() {
    switch (op_->kind) {
      case OpKind::kAllReduce:
        return AllReduce();
      case OpKind::kReduce:
        return Reduce();
      case OpKind::kBroadcast:
        return Broadcast();
      case OpKind::kAllGather:
        return AllGather();
      case OpKind::kReduceScatter:
        return ReduceScatter();
      case OpKind::kBarrier:
        return Barrier();
      default:
        return Direct();
    }
  }

  // Returns a part of the user's operation, of `kind`, on one level; `root` is a rank of that level.
  Operation PartOf(OpKind kind, int root = 0) const {
    Operation part;
    part.kind = kind;
    part.dtype = op_->dtype;
    part.root = root;
    return part;
  }
  // The reductions inside a host, and between hosts.
  ReduceOp InnerReduction() const { return op_->reduce == ReduceOp::kAvg ? ReduceOp::kSum : op_->reduce; }
  ReduceOp OuterReduction() const {
    return op_->reduce == ReduceOp::kAvg || op_->reduce == ReduceOp::kPremulSum ? ReduceOp::kSum
                                                                                : op_->reduce;
  }
  // Completes an average once all partial results have been summed.
  void FinishReduction(void* values, size_t count) const {
    if (op_->reduce != ReduceOp::kAvg || count == 0) return;
    const void* source = values;
    ReduceInRankOrder(ReduceOp::kAvg, partial_dtype_, absl::MakeConstSpan(&source, 1), {}, world_size_, count,
                      values);
  }
  // As FinishReduction; then rounds the f32 values to the operation's dtype. Requires widens_. `out` may be
  // the address of `values`.
  void FinishAndNarrow(float* values, size_t count, void* out) const {
    FinishReduction(values, count);
    NarrowFromF32(op_->dtype, values, count, out);
  }
  // Returns `count` elements from `in` as f32, in values_scratch_.
  float* Widened(const void* in, size_t count) {
    float* const values = reinterpret_cast<float*>(values_scratch_.Get(count * sizeof(float)));
    WidenToF32(op_->dtype, in, count, values);
    return values;
  }
  // Calls `body(offset, count, last)` for consecutive parts of [0, op_->in.count), in bounded pieces if they
  // are widened. All ranks have the same pieces.
  template <typename Body>
  absl::Status ForEachPiece(Body body) {
    const size_t total = op_->in.count, longest = widens_ ? kWidenedCount : total;
    size_t offset = 0;
    do {
      const size_t count = std::min(longest, total - offset);
      TANDEM_RETURN_IF_ERROR(body(offset, count, offset + count == total));
      offset += count;
    } while (offset < total);
    return absl::OkStatus();
  }

  // Synchronises the ranks of the host. `last`: they also learn that the leaders have succeeded.
  absl::Status HostBarrier(bool last = false) {
    return levels_.Run(&levels_.inner, PartOf(OpKind::kBarrier), last);
  }
  // Reduces the `count` values at `in` of the host's ranks to the leader's `out`.
  absl::Status InnerReduce(const void* in, size_t count, void* out);
  absl::Status OuterReduce(OpKind kind, void* values, size_t count, int root);
  // Broadcasts the leader's array to its host.
  absl::Status InnerBroadcast(void* values, size_t count, int root, bool last);
  // Gathers parts of `layout` from the ranks of the host to the leader's `base`; InnerScatter is the reverse.
  absl::Status InnerGather(const void* in, const Layout& layout, absl::Span<const size_t> counts, char* base);
  absl::Status InnerScatter(const char* base, absl::Span<const size_t> counts, void* out, bool last);

  absl::Status AllReduce();
  absl::Status Reduce();
  absl::Status Broadcast();
  absl::Status AllGather();
  absl::Status ReduceScatter();
  absl::Status Barrier();
  absl::Status Direct();
  // Decides whether the failure of a message concerns it alone, or the group.
  absl::Status HandleMessageFailure(const Operation& operation, const absl::Status& status);

  const std::string name_;
  const int rank_;
  const int world_size_;
  Levels levels_;
  const HostTopology& topology_;
  const int host_;
  const int local_;
  const bool is_leader_;
  const Operation* op_ = nullptr;  // the running operation
  size_t size_ = 0;                // of its elements
  // If widens_, a reduction computes and sends its partial results in f32.
  bool widens_ = false;
  DType partial_dtype_ = DType::kU8;
  Scratch parts_scratch_, values_scratch_;
};

absl::Status HierarchicalBackend::InnerReduce(const void* in, size_t count, void* out) {
  if (levels_.inner.backend == nullptr) {
    if (op_->reduce != ReduceOp::kPremulSum) {
      Copy(out, in, count * SizeOf(partial_dtype_));
    } else if (count > 0) {
      ReduceInRankOrder(op_->reduce, partial_dtype_, absl::MakeConstSpan(&in, 1),
                        absl::MakeConstSpan(&op_->factor, 1), 1, count, out);
    }
    return absl::OkStatus();
  }
  Operation part = PartOf(OpKind::kReduce);
  part.dtype = partial_dtype_;
  part.reduce = InnerReduction();
  part.factor = op_->factor;
  part.in = {in, count};
  if (is_leader_) part.out = {out, count};
  return levels_.Run(&levels_.inner, part);
}

absl::Status HierarchicalBackend::OuterReduce(OpKind kind, void* values, size_t count, int root) {
  if (!is_leader_) return absl::OkStatus();
  Operation part = PartOf(kind, root);
  part.dtype = partial_dtype_;
  part.reduce = OuterReduction();
  part.in = {values, count};
  if (kind == OpKind::kAllReduce || host_ == root) part.out = {values, count};
  return levels_.Run(&levels_.outer, part);
}

absl::Status HierarchicalBackend::InnerBroadcast(void* values, size_t count, int root, bool last) {
  Operation part = PartOf(OpKind::kBroadcast, root);
  if (local_ == root) part.in = {values, count};
  part.out = {values, count};
  return levels_.Run(&levels_.inner, part, last);
}

absl::Status HierarchicalBackend::InnerGather(const void* in, const Layout& layout,
                                              absl::Span<const size_t> counts, char* base) {
  char* const mine = base + layout.offset[rank_] * size_;
  if (levels_.inner.backend == nullptr) {
    Copy(mine, in, counts[rank_] * size_);
    return absl::OkStatus();
  }
  Operation part = PartOf(OpKind::kGather);
  std::vector<Part> outs;
  part.in = {in, counts[rank_]};
  for (int rank : levels_.inner.ranks) {
    outs.push_back({base + layout.offset[rank] * size_, counts[rank]});
    part.even = part.even && counts[rank] == counts[rank_];
  }
  if (is_leader_) part.outs = outs;
  return levels_.Run(&levels_.inner, part);
}

absl::Status HierarchicalBackend::InnerScatter(const char* base, absl::Span<const size_t> counts, void* out,
                                               bool last) {
  if (levels_.inner.backend == nullptr) {
    Copy(out, base, counts[rank_] * size_);
    return absl::OkStatus();
  }
  Operation part = PartOf(OpKind::kScatter);
  std::vector<ConstPart> ins;
  for (int rank : levels_.inner.ranks) {
    ins.push_back({base, counts[rank]});
    if (base != nullptr) base += counts[rank] * size_;
    part.even = part.even && counts[rank] == counts[rank_];
  }
  if (is_leader_) part.ins = ins;
  part.out = {out, counts[rank_]};
  return levels_.Run(&levels_.inner, part, last);
}

absl::Status HierarchicalBackend::Barrier() {
  TANDEM_RETURN_IF_ERROR(HostBarrier());
  if (is_leader_) TANDEM_RETURN_IF_ERROR(levels_.Run(&levels_.outer, PartOf(OpKind::kBarrier)));
  return HostBarrier(/*last=*/true);
}

absl::Status HierarchicalBackend::AllReduce() {
  return ForEachPiece([&](size_t offset, size_t count, bool last) -> absl::Status {
    const void* in = static_cast<const char*>(op_->in.data) + offset * size_;
    void* const out = static_cast<char*>(op_->out.data) + offset * size_;
    float* const wide = widens_ ? Widened(in, count) : nullptr;
    void* const values = widens_ ? wide : out;
    TANDEM_RETURN_IF_ERROR(InnerReduce(widens_ ? wide : in, count, values));
    TANDEM_RETURN_IF_ERROR(OuterReduce(OpKind::kAllReduce, values, count, 0));
    if (is_leader_) widens_ ? FinishAndNarrow(wide, count, out) : FinishReduction(out, count);
    return InnerBroadcast(out, count, 0, last);
  });
}

absl::Status HierarchicalBackend::Reduce() {
  const int root_host = topology_.host_of[op_->root];
  const bool is_root = rank_ == op_->root;
  return ForEachPiece([&](size_t offset, size_t count, bool last) -> absl::Status {
    const void* in = static_cast<const char*>(op_->in.data) + offset * size_;
    void* const out = is_root ? static_cast<char*>(op_->out.data) + offset * size_ : nullptr;
    float* const wide = widens_ ? Widened(in, count) : nullptr;
    void* values = widens_                 ? wide
                   : is_root && is_leader_ ? out
                   : is_leader_            ? values_scratch_.Get(count * size_)
                                           : nullptr;
    TANDEM_RETURN_IF_ERROR(InnerReduce(widens_ ? wide : in, count, values));
    TANDEM_RETURN_IF_ERROR(OuterReduce(OpKind::kReduce, values, count, root_host));
    // The leader of the root's host has the result.
    if (widens_ && is_leader_ && host_ == root_host) FinishAndNarrow(wide, count, is_root ? out : wide);
    if (host_ == root_host && op_->root != topology_.leader(root_host)) {
      std::vector<size_t> counts(world_size_, 0);
      counts[op_->root] = count;
      TANDEM_RETURN_IF_ERROR(
          InnerScatter(static_cast<const char*>(is_leader_ ? values : nullptr), counts, out, last));
    } else {
      TANDEM_RETURN_IF_ERROR(HostBarrier(last));
    }
    if (is_root && !widens_) FinishReduction(out, count);
    return absl::OkStatus();
  });
}

absl::Status HierarchicalBackend::Broadcast() {
  const int root_host = topology_.host_of[op_->root];
  const bool is_root = rank_ == op_->root;
  const size_t count = is_root ? op_->in.count : op_->out.count;
  // The root may have no output; its input is only read.
  void* const values = is_root ? const_cast<void*>(op_->in.data) : op_->out.data;
  if (host_ == root_host) {
    TANDEM_RETURN_IF_ERROR(InnerBroadcast(values, count, topology_.local_of[op_->root], /*last=*/false));
  } else {
    TANDEM_RETURN_IF_ERROR(HostBarrier());
  }
  if (is_leader_) {
    Operation part = PartOf(OpKind::kBroadcast, root_host);
    if (host_ == root_host) {
      part.in = {values, count};
    } else {
      part.out = {values, count};
    }
    TANDEM_RETURN_IF_ERROR(levels_.Run(&levels_.outer, part));
  }
  if (is_root && op_->out.count > 0) Copy(op_->out.data, op_->in.data, count * size_);
  return host_ == root_host ? HostBarrier(/*last=*/true) : InnerBroadcast(values, count, 0, /*last=*/true);
}

absl::Status HierarchicalBackend::AllGather() {
  std::vector<size_t> counts;
  for (const Part& out : op_->outs) counts.push_back(out.count);
  const Layout layout(topology_, counts);
  // The whole array, host by host: in the user's memory, if it lies so there.
  char* base = static_cast<char*>(op_->outs[topology_.leader(0)].data);
  bool in_place = base != nullptr;
  for (int rank = 0; rank < world_size_; ++rank) {
    in_place = in_place && (counts[rank] == 0 || op_->outs[rank].data == base + layout.offset[rank] * size_);
  }
  if (!in_place) base = parts_scratch_.Get(layout.total * size_);
  TANDEM_RETURN_IF_ERROR(InnerGather(op_->in.data, layout, counts, base));
  if (is_leader_) {
    Operation part = PartOf(OpKind::kAllGather);
    std::vector<Part> outs;
    for (size_t host = 0; host < topology_.hosts.size(); ++host) {
      outs.push_back({base + layout.host_offset[host] * size_, layout.host_count[host]});
      part.even = part.even && layout.host_count[host] == layout.host_count[0];
    }
    part.in = {outs[host_].data, outs[host_].count};
    part.outs = outs;
    TANDEM_RETURN_IF_ERROR(levels_.Run(&levels_.outer, part));
  }
  TANDEM_RETURN_IF_ERROR(InnerBroadcast(base, layout.total, 0, /*last=*/true));
  for (int rank = 0; !in_place && rank < world_size_; ++rank) {
    Copy(op_->outs[rank].data, base + layout.offset[rank] * size_, counts[rank] * size_);
  }
  return absl::OkStatus();
}

absl::Status HierarchicalBackend::ReduceScatter() {
  std::vector<size_t> counts;
  for (const ConstPart& in : op_->ins) counts.push_back(in.count);
  const Layout layout(topology_, counts);
  const char* base = static_cast<const char*>(op_->ins[topology_.leader(0)].data);
  bool in_order = base != nullptr;
  for (int rank = 0; rank < world_size_; ++rank) {
    in_order = in_order && (counts[rank] == 0 || op_->ins[rank].data == base + layout.offset[rank] * size_);
  }
  if (!in_order) {
    char* scratch = parts_scratch_.Get(layout.total * size_);
    for (int rank = 0; rank < world_size_; ++rank) {
      Copy(scratch + layout.offset[rank] * size_, op_->ins[rank].data, counts[rank] * size_);
    }
    base = scratch;
  }
  const size_t partial_size = SizeOf(partial_dtype_);
  char* values = nullptr;
  if (widens_) {
    values = reinterpret_cast<char*>(Widened(base, layout.total));
    base = values;
  } else if (is_leader_) {
    values = values_scratch_.Get(layout.total * size_);
  }
  TANDEM_RETURN_IF_ERROR(InnerReduce(base, layout.total, values));
  char* const mine = is_leader_ ? values + layout.host_offset[host_] * partial_size : nullptr;
  if (is_leader_) {
    Operation part = PartOf(OpKind::kReduceScatter);
    part.dtype = partial_dtype_;
    part.reduce = OuterReduction();
    std::vector<ConstPart> ins;
    for (size_t host = 0; host < topology_.hosts.size(); ++host) {
      ins.push_back({values + layout.host_offset[host] * partial_size, layout.host_count[host]});
      part.even = part.even && layout.host_count[host] == layout.host_count[0];
    }
    part.ins = ins;
    part.out = {mine, layout.host_count[host_]};
    TANDEM_RETURN_IF_ERROR(levels_.Run(&levels_.outer, part));
    if (widens_) FinishAndNarrow(reinterpret_cast<float*>(mine), layout.host_count[host_], mine);
  }
  TANDEM_RETURN_IF_ERROR(InnerScatter(mine, counts, op_->out.data, /*last=*/true));
  if (!widens_) FinishReduction(op_->out.data, op_->out.count);
  return absl::OkStatus();
}

absl::Status HierarchicalBackend::Direct() {
  TANDEM_RETURN_IF_ERROR(HostBarrier());
  if (is_leader_) TANDEM_RETURN_IF_ERROR(levels_.Run(&levels_.outer, PartOf(OpKind::kBarrier)));
  return levels_.Run(&levels_.mesh, *op_);
}

absl::Status HierarchicalBackend::HandleMessageFailure(const Operation& operation,
                                                       const absl::Status& status) {
  // A message that does not fit, or has an invalid rank, fails alone.
  if (status.code() == absl::StatusCode::kInvalidArgument ||
      status.code() == absl::StatusCode::kUnimplemented) {
    return status;
  }
  return levels_.Break(levels_.mesh, operation, status);
}

absl::StatusOr<std::unique_ptr<Backend>> Make(const BackendFactory& inner, const BackendFactory& outer,
                                              const BackendOptions& options) {
  const std::string name = absl::StrCat(inner.name, "+", outer.name);
  const std::string context = absl::StrCat("backend ", name, " of group '", options.group, "'");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size ||
      options.peers.size() != static_cast<size_t>(options.world_size)) {
    return absl::InvalidArgumentError(absl::StrCat(context, ": rank ", options.rank, " of ",
                                                   options.world_size, " with ", options.peers.size(),
                                                   " peers: there must be one for each rank"));
  }
  const size_t hosts = HostTopology(options.peers).hosts.size();
  if (hosts == 1) return inner.make(options);
  if (hosts == options.peers.size()) return outer.make(options);
  auto backend = std::make_unique<HierarchicalBackend>(options, name);
  TANDEM_RETURN_IF_ERROR(Annotate(backend->Connect(options, inner, outer), context));
  return backend;
}

}  // namespace
}  // namespace hierarchical

BackendFactory HierarchicalBackendFactory(const BackendFactory& inner, const BackendFactory& outer) {
  BackendFactory factory;
  factory.name = absl::StrCat(inner.name, "+", outer.name);
  factory.device = Device::Kind::kCpu;
  // Each level checks its own ranks when it is made; the inner one those of this host.
  factory.viable = [](const BackendOptions&) { return absl::OkStatus(); };
  factory.make = [inner, outer](const BackendOptions& options) {
    return hierarchical::Make(inner, outer, options);
  };
  return factory;
}

}  // namespace tandem::collectives
