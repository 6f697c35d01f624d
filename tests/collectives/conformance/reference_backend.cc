// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/conformance/reference_backend.h"

#include <cstring>
#include <deque>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/ranks.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives {

class ReferenceHub {
 public:
  ReferenceHub(std::string group, int world_size)
      : group_(std::move(group)), ranks_(world_size), left_(world_size) {}

  absl::Status Run(int rank, const Operation& operation) {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    if (absl::Status gone = Gone(operation); !gone.ok()) return Break(gone);
    ranks_[rank] = &operation;
    const uint64_t round = round_;
    if (++arrived_ == static_cast<int>(ranks_.size())) {
      Finish();
      return broken_;
    }
    auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return round_ != round || !broken_.ok(); };
    if (mutex_.AwaitWithTimeout(absl::Condition(&over), operation.timeout)) {
      return round_ != round && !round_failed_ ? absl::OkStatus() : broken_;
    }
    std::vector<int> absent;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r] == nullptr) absent.push_back(static_cast<int>(r));
    }
    return Break(absl::DeadlineExceededError(absl::StrCat(Describe(operation), " on group '", group_,
                                                          "': ", NameRanks(absent), " did not arrive within ",
                                                          absl::FormatDuration(operation.timeout))));
  }

  void Send(int rank, const Operation& o, const Backend::Done& done) {
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      status = !broken_.ok() ? broken_ : left_[o.root] ? Break(HasLeft(o, o.root)) : absl::OkStatus();
      if (status.ok()) {
        const char* data = static_cast<const char*>(o.in.data);
        Message message{rank, o.root, o.tag, o.dtype, {data, data + o.in.count * SizeOf(o.dtype)}};
        auto taker = receivers_.begin();
        while (taker != receivers_.end() && !(!(*taker)->done && Fits(**taker, message))) ++taker;
        if (taker == receivers_.end()) {
          messages_.push_back(std::move(message));
        } else {
          Deliver(message, *taker);
          receivers_.erase(taker);
        }
      }
    }
    done(status.ok() ? absl::StatusOr<int>(rank) : status);
  }

  struct Receiver {
    int rank;
    Operation operation;
    bool done = false;
    absl::StatusOr<int> result = -1;
  };
  // Appends a receive to the order of receives.
  std::shared_ptr<Receiver> Post(int rank, const Operation& operation) {
    auto receiver = std::make_shared<Receiver>(Receiver{rank, operation});
    absl::MutexLock lock(&mutex_);
    for (auto message = messages_.begin(); message != messages_.end(); ++message) {
      if (!Fits(*receiver, *message)) continue;
      Deliver(*message, receiver);
      messages_.erase(message);
      return receiver;
    }
    receivers_.push_back(receiver);
    return receiver;
  }
  absl::StatusOr<int> Await(const std::shared_ptr<Receiver>& receiver) {
    const Operation& o = receiver->operation;
    absl::MutexLock lock(&mutex_);
    auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return receiver->done || !broken_.ok() || (o.root != kAnySource && left_[o.root]);
    };
    const bool ended = mutex_.AwaitWithTimeout(absl::Condition(&over), o.timeout);
    if (receiver->done) return receiver->result;
    receivers_.remove(receiver);
    if (!broken_.ok()) return broken_;
    if (ended) return Break(HasLeft(o, o.root));
    return Break(absl::DeadlineExceededError(absl::StrCat(
        Describe(o), " on group '", group_, "': nothing came within ", absl::FormatDuration(o.timeout))));
  }

  void Abort(const absl::Status& reason) {
    absl::MutexLock lock(&mutex_);
    (void)Break(reason);
  }
  void Leave(int rank) {
    absl::MutexLock lock(&mutex_);
    left_[rank] = true;
    for (const Operation* waiting : ranks_) {
      if (waiting != nullptr && broken_.ok()) broken_ = HasLeft(*waiting, rank);
    }
  }

 private:
  struct Message {
    int from, to;
    uint32_t tag;
    DType dtype;
    std::vector<char> bytes;
  };

  absl::Status Break(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken_.ok()) broken_ = reason;
    return broken_;
  }
  absl::Status HasLeft(const Operation& o, int rank) const {
    return absl::UnavailableError(
        absl::StrCat(Describe(o), " on group '", group_, "': rank ", rank, " has left the group"));
  }
  absl::Status Gone(const Operation& o) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (size_t r = 0; r < left_.size(); ++r) {
      if (left_[r]) return HasLeft(o, static_cast<int>(r));
    }
    return absl::OkStatus();
  }

  static bool Fits(const Receiver& receiver, const Message& message) {
    const Operation& o = receiver.operation;
    return receiver.rank == message.to && o.tag == message.tag &&
           (o.root == kAnySource || o.root == message.from);
  }
  static void Deliver(const Message& message, const std::shared_ptr<Receiver>& receiver) {
    const Operation& o = receiver->operation;
    const size_t bytes = o.out.count * SizeOf(o.dtype);
    receiver->done = true;
    receiver->result = message.from;
    if (message.bytes.size() != bytes || message.dtype != o.dtype) {
      receiver->result = absl::InvalidArgumentError(
          absl::StrCat(Describe(o), ": rank ", message.from, " sent ", Name(message.dtype), " x ",
                       message.bytes.size() / SizeOf(message.dtype)));
    } else if (bytes > 0) {
      std::memcpy(o.out.data, message.bytes.data(), bytes);
    }
  }

  // Computes all ranks' results once all ranks have come.
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int world = static_cast<int>(ranks_.size());
    for (int r = 1; r < world && broken_.ok(); ++r) {
      const Fingerprint a = FingerprintOf(*ranks_[0]), b = FingerprintOf(*ranks_[r]);
      if (!Agree(a, b)) broken_ = absl::InvalidArgumentError(Disagreement(group_, 0, a, r, b));
      for (int s = 0; s < world && broken_.ok(); ++s) ComparePair(s, r);
    }
    if (broken_.ok()) Work();
    round_failed_ = !broken_.ok();
    ++round_;
    arrived_ = 0;
    std::fill(ranks_.begin(), ranks_.end(), nullptr);
  }
  void ComparePair(int a, int b) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      const size_t sent = CountTo(*ranks_[from], from, to), expected = CountFrom(*ranks_[to], to, from);
      const OpKind kind = ranks_[a]->kind;
      if (sent == expected || kind == OpKind::kBarrier || kind == OpKind::kAllReduce || a == b) continue;
      if (kind == OpKind::kReduceScatter) continue;  // ins[s].count is what the fingerprint compares
      (void)Break(absl::InvalidArgumentError(
          absl::StrCat("ranks of group '", group_, "' disagree: in ", Describe(*ranks_[from]), " rank ", from,
                       " sends ", sent, " elements to rank ", to, ", which expects ", expected)));
    }
  }

  void Work() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int world = static_cast<int>(ranks_.size());
    const Operation& any = *ranks_[0];
    const size_t size = SizeOf(any.dtype);
    // Copies all inputs first: they may lie where outputs go.
    struct Chunk {
      void* to;
      std::vector<char> bytes;
    };
    std::vector<Chunk> chunks;
    auto copy = [&](const void* from, size_t count, void* to) {
      const char* bytes = static_cast<const char*>(from);
      if (count > 0) chunks.push_back({to, {bytes, bytes + count * size}});
    };
    auto reduce = [&](auto source_of, const Part& out) {
      if (out.count == 0) return;
      std::vector<const void*> sources;
      std::vector<double> factors;
      for (int s = 0; s < world; ++s) {
        sources.push_back(source_of(*ranks_[s]));
        if (any.reduce == ReduceOp::kPremulSum) factors.push_back(ranks_[s]->factor);
      }
      chunks.push_back({out.data, std::vector<char>(out.count * size)});
      ReduceInRankOrder(any.reduce, any.dtype, sources, factors, world, out.count,
                        chunks.back().bytes.data());
    };
    for (int r = 0; r < world; ++r) {
      const Operation& o = *ranks_[r];
      for (int s = 0; s < world; ++s) {
        const Operation& other = *ranks_[s];
        if (o.kind == OpKind::kAllGather || (o.kind == OpKind::kGather && r == o.root)) {
          copy(other.in.data, other.in.count, o.outs[s].data);
        } else if (o.kind == OpKind::kAllToAll) {
          copy(other.ins[r].data, other.ins[r].count, o.outs[s].data);
        } else if (s == o.root && o.kind == OpKind::kScatter) {
          copy(other.ins[r].data, other.ins[r].count, o.out.data);
        } else if (s == o.root && o.kind == OpKind::kBroadcast && o.out.count > 0) {
          copy(other.in.data, other.in.count, o.out.data);
        }
      }
      if (o.kind == OpKind::kAllReduce || o.kind == OpKind::kReduce) {
        reduce([](const Operation& other) { return other.in.data; }, o.out);
      } else if (o.kind == OpKind::kReduceScatter) {
        reduce([r](const Operation& other) { return other.ins[r].data; }, o.out);
      }
    }
    for (const Chunk& chunk : chunks) std::memcpy(chunk.to, chunk.bytes.data(), chunk.bytes.size());
  }

  const std::string group_;
  absl::Mutex mutex_;
  std::vector<const Operation*> ranks_ ABSL_GUARDED_BY(mutex_);  // those that wait in this round
  std::vector<bool> left_ ABSL_GUARDED_BY(mutex_);
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  bool round_failed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Receiver>> receivers_ ABSL_GUARDED_BY(mutex_);
};

namespace {

class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend(std::shared_ptr<ReferenceHub> hub, std::string name, int rank)
      : hub_(std::move(hub)), name_(std::move(name)), rank_(rank) {}
  ~ReferenceBackend() override {
    hub_->Leave(rank_);
    for (std::thread& thread : threads_) thread.join();
  }

  absl::string_view name() const override { return name_; }
  absl::Status Supports(const Operation& o) const override {
    const bool reduces =
        o.kind == OpKind::kAllReduce || o.kind == OpKind::kReduce || o.kind == OpKind::kReduceScatter;
    return reduces ? SupportsReduction(o.reduce, o.dtype) : absl::OkStatus();
  }
  absl::Status Run(const Operation& operation) override { return hub_->Run(rank_, operation); }
  void StartPointToPoint(const Operation& operation, Done done) override {
    if (operation.kind == OpKind::kSend) return hub_->Send(rank_, operation, done);
    auto receiver = hub_->Post(rank_, operation);
    absl::MutexLock lock(&mutex_);
    threads_.emplace_back([this, receiver, done = std::move(done)] { done(hub_->Await(receiver)); });
  }
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override {
    if (operation.kind == OpKind::kRecv) return hub_->Await(hub_->Post(rank_, operation));
    absl::StatusOr<int> result = rank_;
    hub_->Send(rank_, operation, [&](absl::StatusOr<int> sent) { result = std::move(sent); });
    return result;
  }
  void Abort(const absl::Status& reason) override { hub_->Abort(reason); }

 private:
  const std::shared_ptr<ReferenceHub> hub_;
  const std::string name_;
  const int rank_;
  absl::Mutex mutex_;
  std::vector<std::thread> threads_;  // of receives that were started
};

}  // namespace

BackendFactory ReferenceWorld::factory(std::string name) {
  BackendFactory factory;
  factory.name = name;
  factory.make = [hubs = hubs_, name](const BackendOptions& o) -> absl::StatusOr<std::unique_ptr<Backend>> {
    absl::MutexLock lock(&hubs->mutex);
    std::shared_ptr<ReferenceHub>& hub = hubs->by_group[o.group];
    if (hub == nullptr) hub = std::make_shared<ReferenceHub>(o.group, o.world_size);
    return std::make_unique<ReferenceBackend>(hub, name, o.rank);
  };
  return factory;
}

}  // namespace tandem::collectives
