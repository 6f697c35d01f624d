#include "collectives/backends/gloo/gloo_group.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "collectives/backends/gloo/failure_board.h"
#include "collectives/backends/gloo/mesh.h"
#include "collectives/backends/gloo/operation.h"
#include "collectives/network.h"
#include "collectives/reduce.h"
#include "collectives/rendezvous.h"

namespace tandem::collectives {
namespace {

using namespace gloo_group;  // NOLINT

constexpr size_t kInlineBytes = 256 << 10;   // data that travels with the first message
constexpr size_t kOneShotBytes = 64 << 10;   // all-reduce: what a rank may receive in full
constexpr size_t kMaxStringBytes = 1 << 30;  // AllGatherBytes: what one rank may contribute
static_assert(sizeof(Operation) + kInlineBytes <= Mesh::kMessageBytes);

// How long a rank that lost a peer looks for the peer's reason before it calls it dead.
constexpr absl::Duration kGrace = absl::Milliseconds(500);
// How long a rank that is done waits for the others to have finished the last operation too.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

template <typename T>
constexpr DType kDType = DType::kByte;
template <>
constexpr DType kDType<float> = DType::kF32;
template <>
constexpr DType kDType<double> = DType::kF64;
template <>
constexpr DType kDType<int64_t> = DType::kI64;

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(Store* store, const ProcessGroupOptions& options, std::unique_ptr<Mesh> mesh)
      : options_(options), mesh_(std::move(mesh)), board_(store, options.name, options.rank) {
    for (int rank = 0; rank < options.world_size; ++rank) {
      if (rank != options.rank) peers_.push_back(rank);
    }
    messages_.resize(options.world_size);
    views_.resize(options.world_size);
  }

  ~GlooGroup() override {
    if (!broken_.ok()) return;
    // A connection that closes fails whatever its peer is waiting for: leave together. Those that are not
    // leaving, but in another operation, learn that this rank is gone.
    Begin(OpKind::kLeave, DType::kByte, 0);
    Compose(absl::Span<const char>());
    (void)mesh_->Exchange(views_, absl::Now() + kLeaveTimeout);
  }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  absl::Status AllReduce(absl::Span<float> values, ReduceOp op) override { return Reduce(values, op); }
  absl::Status AllReduce(absl::Span<double> values, ReduceOp op) override { return Reduce(values, op); }
  absl::Status AllReduce(absl::Span<int64_t> values, ReduceOp op) override { return Reduce(values, op); }
  absl::Status Broadcast(void* data, size_t bytes, int root) override;
  absl::Status AllGather(const void* in, size_t bytes, void* out) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view bytes) override;
  absl::Status Barrier() override { return Barrier(options_.timeout); }
  absl::Status Barrier(absl::Duration timeout) override;

 private:
  using Part = Mesh::Part;

  // Names the next operation; its messages carry this name.
  void Begin(OpKind kind, DType dtype, uint64_t count);
  // Lays out the message to one peer, or the same one to all.
  void ComposeFor(int peer, absl::Span<const char> data);
  void Compose(absl::Span<const char> data);
  // Exchanges the composed messages and checks that all ranks agree.
  absl::Status Meet(absl::Time deadline);
  absl::Status Transfer(absl::Span<const Part> sends, absl::Span<const Part> receives, absl::Time deadline);
  // The data that came with the message of `peer`.
  const char* Data(int peer) const { return mesh_->incoming(peer) + sizeof(Operation); }

  // After a time-out in the middle of a transfer: those of `ranks` that leave a note were waiting as well;
  // the one that hangs does not.
  void DropThoseWhoWait(std::vector<int>* ranks);
  // Breaks the group: tells the others why, and closes. Returns the reason.
  absl::Status Break(absl::Status reason);
  absl::Status Fail(const Mesh::Outcome& outcome);
  std::string Here() const { return absl::StrCat(Describe(op_), " on group '", options_.name, "'"); }
  absl::Time Deadline() const { return absl::Now() + options_.timeout; }

  template <typename T>
  absl::Status Reduce(absl::Span<T> values, ReduceOp op);
  template <typename T>
  absl::Status ReduceSliced(absl::Span<T> values, ReduceOp op, absl::Time deadline);

  const ProcessGroupOptions options_;
  std::unique_ptr<Mesh> mesh_;
  FailureBoard board_;
  std::vector<int> peers_;
  absl::Status broken_;
  absl::Duration timeout_;  // of the operation that runs
  Operation op_;
  uint64_t sequence_ = 0;
  std::vector<std::vector<char>> messages_;  // by peer; one of them serves all where all get the same
  std::vector<absl::Span<const char>> views_;
  std::vector<char> scratch_;
};

void GlooGroup::Begin(OpKind kind, DType dtype, uint64_t count) {
  op_ = Operation();
  op_.magic = Mesh::kMagic;
  op_.sequence = sequence_++;
  op_.kind = kind;
  op_.dtype = dtype;
  op_.count = count;
  timeout_ = options_.timeout;
}

void GlooGroup::ComposeFor(int peer, absl::Span<const char> data) {
  std::vector<char>& message = messages_[peer];
  message.resize(sizeof(op_) + data.size());
  std::memcpy(message.data(), &op_, sizeof(op_));
  if (!data.empty()) std::memcpy(message.data() + sizeof(op_), data.data(), data.size());
  views_[peer] = message;
}

void GlooGroup::Compose(absl::Span<const char> data) {
  ComposeFor(options_.rank, data);
  std::fill(views_.begin(), views_.end(), views_[options_.rank]);
}

absl::Status GlooGroup::Meet(absl::Time deadline) {
  const Mesh::Outcome outcome = mesh_->Exchange(views_, deadline);
  if (outcome.kind != Mesh::Outcome::Kind::kDone) return Fail(outcome);
  for (int peer : peers_) {
    Operation theirs;
    std::memcpy(&theirs, mesh_->incoming(peer), sizeof(theirs));
    if (Agree(op_, theirs)) continue;
    if (theirs.kind == OpKind::kLeave) {
      return Break(absl::UnavailableError(absl::StrCat(Here(), ": rank ", peer, " has left the group")));
    }
    // The lower rank first, so that all ranks of a pair say the same.
    const bool mine_first = options_.rank < peer;
    return Break(absl::InvalidArgumentError(
        absl::StrCat("ranks of group '", options_.name, "' disagree: rank ", std::min(peer, options_.rank),
                     " calls ", Describe(mine_first ? op_ : theirs), ", rank ", std::max(peer, options_.rank),
                     " calls ", Describe(mine_first ? theirs : op_),
                     "; all ranks must call the same operations in the same order with the same sizes")));
  }
  return absl::OkStatus();
}

absl::Status GlooGroup::Transfer(absl::Span<const Part> sends, absl::Span<const Part> receives,
                                 absl::Time deadline) {
  Mesh::Outcome outcome = mesh_->Transfer(sends, receives, deadline);
  if (outcome.kind == Mesh::Outcome::Kind::kDone) return absl::OkStatus();
  if (outcome.kind == Mesh::Outcome::Kind::kTimeout) DropThoseWhoWait(&outcome.ranks);
  return Fail(outcome);
}

void GlooGroup::DropThoseWhoWait(std::vector<int>* ranks) {
  board_.Record(absl::DeadlineExceededError(
      absl::StrCat(Here(), ": not finished within ", absl::FormatDuration(timeout_))));
  const absl::Time until = absl::Now() + kGrace;
  std::vector<int> silent;
  for (int rank : *ranks) {
    if (!board_.Find({rank}, std::max(until - absl::Now(), absl::ZeroDuration()))) silent.push_back(rank);
  }
  if (!silent.empty()) *ranks = std::move(silent);
}

absl::Status GlooGroup::Break(absl::Status reason) {
  broken_ = std::move(reason);
  board_.Record(broken_);  // before closing, so that those who see us go find it
  mesh_->Close();
  return broken_;
}

absl::Status GlooGroup::Fail(const Mesh::Outcome& outcome) {
  if (outcome.kind == Mesh::Outcome::Kind::kTimeout) {
    return Break(absl::DeadlineExceededError(absl::StrCat(
        Here(), ": ", NameRanks(outcome.ranks), " did not arrive within ", absl::FormatDuration(timeout_))));
  }
  if (absl::optional<FailureBoard::Found> found = board_.Find(outcome.ranks, kGrace)) {
    return Break(absl::Status(found->reason.code(), found->reason.message()));
  }
  return Break(absl::UnavailableError(absl::StrCat(Here(), ": the connection to ", NameRanks(outcome.ranks),
                                                   " was lost: killed? (", outcome.detail, ")")));
}

template <typename T>
absl::Status GlooGroup::Reduce(absl::Span<T> values, ReduceOp op) {
  if (!broken_.ok()) return broken_;
  const absl::Time deadline = Deadline();
  Begin(OpKind::kAllReduce, kDType<T>, values.size());
  op_.reduce = static_cast<uint32_t>(op);
  const size_t bytes = values.size() * sizeof(T);
  if (bytes > kOneShotBytes / peers_.size()) return ReduceSliced(values, op, deadline);

  Compose({reinterpret_cast<const char*>(values.data()), bytes});
  TANDEM_RETURN_IF_ERROR(Meet(deadline));
  std::vector<const T*> sources(world_size(), values.data());
  for (int peer : peers_) sources[peer] = reinterpret_cast<const T*>(Data(peer));
  ReduceInRankOrder<T>(op, sources, values.size(), values.data());
  return absl::OkStatus();
}

template <typename T>
absl::Status GlooGroup::ReduceSliced(absl::Span<T> values, ReduceOp op, absl::Time deadline) {
  const size_t world = world_size();
  // Slice r; the first ones are one element longer where the count does not divide.
  auto slice = [values, world](size_t r) {
    const size_t base = values.size() / world, longer = values.size() % world;
    return values.subspan(r * base + std::min(r, longer), base + (r < longer ? 1 : 0));
  };
  auto chars = [](absl::Span<T> part) {
    return absl::Span<const char>(reinterpret_cast<const char*>(part.data()), part.size() * sizeof(T));
  };
  const absl::Span<T> mine = slice(rank());
  std::vector<const T*> sources(world, mine.data());

  if (slice(0).size() * sizeof(T) <= kInlineBytes) {
    for (int peer : peers_) ComposeFor(peer, chars(slice(peer)));
    TANDEM_RETURN_IF_ERROR(Meet(deadline));
    for (int peer : peers_) sources[peer] = reinterpret_cast<const T*>(Data(peer));
    ReduceInRankOrder<T>(op, sources, mine.size(), mine.data());
    Compose(chars(mine));
    TANDEM_RETURN_IF_ERROR(Meet(deadline));
    for (int peer : peers_) std::memcpy(slice(peer).data(), Data(peer), slice(peer).size() * sizeof(T));
    return absl::OkStatus();
  }

  Compose(absl::Span<const char>());
  TANDEM_RETURN_IF_ERROR(Meet(deadline));
  std::vector<Part> sends, receives;
  scratch_.resize(peers_.size() * mine.size() * sizeof(T));
  char* room = scratch_.data();
  for (int peer : peers_) {
    sends.push_back({peer, slice(peer).data(), slice(peer).size() * sizeof(T)});
    receives.push_back({peer, room, mine.size() * sizeof(T)});
    sources[peer] = reinterpret_cast<const T*>(room);
    room += mine.size() * sizeof(T);
  }
  TANDEM_RETURN_IF_ERROR(Transfer(sends, receives, deadline));
  ReduceInRankOrder<T>(op, sources, mine.size(), mine.data());
  // What was sent comes back reduced.
  std::swap(sends, receives);
  for (Part& part : sends) part.data = mine.data();
  return Transfer(sends, receives, deadline);
}

absl::Status GlooGroup::Broadcast(void* data, size_t bytes, int root) {
  if (!broken_.ok()) return broken_;
  const absl::Time deadline = Deadline();
  Begin(OpKind::kBroadcast, DType::kByte, bytes);
  op_.root = root;
  const bool fits = bytes <= kInlineBytes;
  Compose({static_cast<const char*>(data), fits && root == rank() ? bytes : 0});
  TANDEM_RETURN_IF_ERROR(Meet(deadline));
  if (root < 0 || root >= world_size()) {  // after the meeting: all ranks say the same, and stay in step
    return absl::InvalidArgumentError(
        absl::StrCat(Here(), ": the root must be a rank from 0 to ", world_size() - 1, ", not ", root));
  }
  if (fits) {
    if (root != rank() && bytes > 0) std::memcpy(data, Data(root), bytes);
    return absl::OkStatus();
  }
  std::vector<Part> sends;
  if (root != rank()) return Transfer({}, {{root, data, bytes}}, deadline);
  for (int peer : peers_) sends.push_back({peer, data, bytes});
  return Transfer(sends, {}, deadline);
}

absl::Status GlooGroup::AllGather(const void* in, size_t bytes, void* out) {
  if (!broken_.ok()) return broken_;
  const absl::Time deadline = Deadline();
  Begin(OpKind::kAllGather, DType::kByte, bytes);
  char* rows = static_cast<char*>(out);
  const bool fits = bytes <= kInlineBytes;
  Compose({static_cast<const char*>(in), fits ? bytes : 0});
  TANDEM_RETURN_IF_ERROR(Meet(deadline));
  if (bytes > 0) std::memmove(rows + rank() * bytes, in, bytes);  // `in` may be that row itself
  if (fits) {
    for (int peer : peers_) {
      if (bytes > 0) std::memcpy(rows + peer * bytes, Data(peer), bytes);
    }
    return absl::OkStatus();
  }
  std::vector<Part> sends, receives;
  for (int peer : peers_) {
    sends.push_back({peer, rows + rank() * bytes, bytes});
    receives.push_back({peer, rows + peer * bytes, bytes});
  }
  return Transfer(sends, receives, deadline);
}

absl::StatusOr<std::vector<std::string>> GlooGroup::AllGatherBytes(absl::string_view bytes) {
  if (!broken_.ok()) return broken_;
  const absl::Time deadline = Deadline();
  Begin(OpKind::kAllGatherBytes, DType::kByte, bytes.size());
  Compose({bytes.data(), bytes.size() <= kInlineBytes ? bytes.size() : 0});
  TANDEM_RETURN_IF_ERROR(Meet(deadline));
  std::vector<uint64_t> sizes(world_size(), bytes.size());
  for (int peer : peers_) {
    Operation theirs;
    std::memcpy(&theirs, mesh_->incoming(peer), sizeof(theirs));
    sizes[peer] = theirs.count;
  }
  for (int r = 0; r < world_size(); ++r) {  // seen alike by all ranks, which stay in step
    if (sizes[r] > kMaxStringBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(Here(), ": rank ", r, " gives ", sizes[r], " bytes; the limit is ", kMaxStringBytes));
    }
  }
  std::vector<std::string> all(world_size());
  std::vector<Part> sends, receives;
  all[rank()] = std::string(bytes);
  for (int peer : peers_) {
    if (sizes[peer] <= kInlineBytes) {
      all[peer].assign(Data(peer), sizes[peer]);
    } else {
      all[peer].resize(sizes[peer]);
      receives.push_back({peer, all[peer].data(), all[peer].size()});
    }
    if (bytes.size() > kInlineBytes) sends.push_back({peer, bytes.data(), bytes.size()});
  }
  TANDEM_RETURN_IF_ERROR(Transfer(sends, receives, deadline));
  return all;
}

absl::Status GlooGroup::Barrier(absl::Duration timeout) {
  if (!broken_.ok()) return broken_;
  Begin(OpKind::kBarrier, DType::kByte, 0);
  timeout_ = timeout;
  Compose(absl::Span<const char>());
  return Meet(absl::Now() + timeout);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectGlooGroup(Store* store,
                                                               const ProcessGroupOptions& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  TANDEM_ASSIGN_OR_RETURN(const std::string address, options.interface_address.empty()
                                                         ? LocalAddressTowards(store->address())
                                                         : ResolveLocalAddress(options.interface_address));
  TANDEM_RETURN_IF_ERROR(Meet(store, options, address, deadline));
  PrefixStore group(store, absl::StrCat("pg/", options.name));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Mesh> mesh,
                          Mesh::Connect(&group, options.rank, options.world_size, address, deadline));
  return std::make_unique<GlooGroup>(store, options, std::move(mesh));
}

}  // namespace tandem::collectives
