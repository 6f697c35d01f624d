#include "collectives/backends/gloo/mesh.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "gloo/common/error.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/device.h"
#include "gloo/transport/tcp/device.h"

namespace tandem::collectives {
namespace {

constexpr uint64_t kMessageSlot = 1;
constexpr uint64_t kTransferSlot = 2;
constexpr uint64_t kNeverSlot = 3;  // nothing is ever sent here
constexpr uint64_t kProbeSlot = 4;

std::chrono::milliseconds Remaining(absl::Time deadline) {
  // At least a millisecond: Gloo takes zero for "no time-out" in places.
  return std::chrono::milliseconds(std::max<int64_t>(1, absl::ToInt64Milliseconds(deadline - absl::Now())));
}

void IgnoreBrokenPipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

// Gloo's view of our store. Errors travel through Gloo as exceptions.
class StoreAdapter : public gloo::rendezvous::Store {
 public:
  StoreAdapter(collectives::Store* store, absl::Time deadline) : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(store_->Set(absl::StrCat("gloo/", key), absl::string_view(data.data(), data.size())));
  }
  std::vector<char> get(const std::string& key) override {
    absl::StatusOr<std::string> value = store_->Get(absl::StrCat("gloo/", key), Left());
    Check(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(absl::StrCat("gloo/", key));
    Check(store_->Wait(full, Left()));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

  const absl::Status& status() const { return status_; }

 private:
  absl::Duration Left() const { return std::max(deadline_ - absl::Now(), absl::ZeroDuration()); }
  void Check(const absl::Status& status) {
    if (status.ok()) return;
    status_ = status;
    throw gloo::IoException(std::string(status.message()));
  }

  collectives::Store* const store_;
  const absl::Time deadline_;
  absl::Status status_;
};

class GlooMesh final : public Mesh {
 public:
  GlooMesh(int rank, int world_size)
      : rank_(rank),
        world_size_(world_size),
        context_(std::make_shared<gloo::rendezvous::Context>(rank, world_size)) {
    // Left uninitialised: pages that no message touches are never mapped.
    incoming_.reset(static_cast<char*>(::operator new(kStride* world_size, std::align_val_t(64))));
  }

  // Throws what Gloo throws.
  void Open(StoreAdapter* store, const std::string& address, absl::Time deadline) {
    gloo::transport::tcp::attr attr(address.c_str());
    device_ = gloo::transport::tcp::CreateDevice(attr);
    context_->setTimeout(Remaining(deadline));
    context_->connectFullMesh(*store, device_);
    // One buffer over the whole address space: an offset into it is an address. Since Gloo reports a broken
    // connection only to buffers that wait in its queues, not to one whose bytes it is just moving, each
    // connection gets a receive that nothing will ever fulfil. So whatever waits on this buffer learns of any
    // lost peer at once.
    everything_ = context_->createUnboundBuffer(nullptr, std::numeric_limits<size_t>::max());
    ForEachPeer([&](int peer) { everything_->recv(peer, kNeverSlot, 0, 0); });
  }

  Outcome Exchange(absl::Span<const absl::Span<const char>> messages, absl::Time deadline) override {
    if (closed_) return {Outcome::Kind::kLost, {}, "closed"};
    TANDEM_CHECK(messages.size() == world_size_);
    ForEachPeer([&](int peer) { std::memset(incoming_.get() + kStride * peer, 0, sizeof(kMagic)); });
    Outcome outcome = Guard(deadline, [&] {
      ForEachPeer(
          [&](int peer) { Receive(peer, kMessageSlot, incoming_.get() + kStride * peer, kMessageBytes); });
      ForEachPeer([&](int peer) {
        TANDEM_CHECK(messages[peer].size() >= sizeof(kMagic) && messages[peer].size() <= kMessageBytes);
        Send(peer, kMessageSlot, messages[peer].data(), messages[peer].size());
      });
      for (int i = 1; i < world_size_; ++i) everything_->waitRecv(Remaining(deadline));
      for (int i = 1; i < world_size_; ++i) everything_->waitSend(Remaining(deadline));
    });
    if (outcome.kind == Outcome::Kind::kTimeout) {
      // The connections are closed: nothing is written to the messages any more.
      ForEachPeer([&](int peer) {
        uint64_t magic = 0;
        std::memcpy(&magic, incoming(peer), sizeof(magic));
        if (magic != kMagic) outcome.ranks.push_back(peer);
      });
    }
    return outcome;
  }

  const char* incoming(int rank) const override { return incoming_.get() + kStride * rank; }

  Outcome Transfer(absl::Span<const Part> sends, absl::Span<const Part> receives,
                   absl::Time deadline) override {
    if (closed_) return {Outcome::Kind::kLost, {}, "closed"};
    std::vector<int> awaited;
    Outcome outcome = Guard(deadline, [&] {
      int sending = 0, receiving = 0;
      for (const Part& part : receives) {
        if (part.bytes == 0) continue;
        ++receiving;
        awaited.push_back(part.rank);
        Receive(part.rank, kTransferSlot, part.data, part.bytes);
      }
      for (const Part& part : sends) {
        if (part.bytes == 0) continue;
        ++sending;
        Send(part.rank, kTransferSlot, part.data, part.bytes);
      }
      for (int i = 0; i < receiving; ++i) {
        // Of completions between two waits Gloo names the last: a rank may stay in the list though it has
        // delivered.
        int from = -1;
        everything_->waitRecv(&from, Remaining(deadline));
        awaited.erase(std::remove(awaited.begin(), awaited.end(), from), awaited.end());
      }
      if (receiving > 0) awaited.clear();
      for (const Part& part : sends) {
        if (part.bytes > 0) awaited.push_back(part.rank);
      }
      for (int i = 0; i < sending; ++i) {
        int to = -1;
        everything_->waitSend(&to, Remaining(deadline));
        awaited.erase(std::remove(awaited.begin(), awaited.end(), to), awaited.end());
      }
    });
    if (outcome.kind == Outcome::Kind::kTimeout) outcome.ranks = std::move(awaited);
    return outcome;
  }

  void Close() override {
    if (closed_) return;
    closed_ = true;
    context_->closeConnections();
  }

 private:
  static constexpr size_t kStride = (kMessageBytes + 63) / 64 * 64;
  struct AlignedDelete {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };

  template <typename Body>
  void ForEachPeer(Body body) {
    // Starting behind itself, so that not every rank writes to rank 0 first.
    for (int step = 1; step < world_size_; ++step) body((rank_ + step) % world_size_);
  }
  void Send(int peer, uint64_t slot, const void* data, size_t bytes) {
    everything_->send(peer, slot, reinterpret_cast<uintptr_t>(data), bytes);
  }
  void Receive(int peer, uint64_t slot, const void* data, size_t bytes) {
    everything_->recv(peer, slot, reinterpret_cast<uintptr_t>(data), bytes);
  }

  template <typename Body>
  Outcome Guard(absl::Time deadline, Body body) {
    Outcome outcome;
    try {
      body();
      return outcome;
    } catch (const std::exception& error) {
      outcome.detail = error.what();
    }
    if (absl::Now() >= deadline) {
      outcome.kind = Outcome::Kind::kTimeout;
    } else {
      outcome.kind = Outcome::Kind::kLost;
      ForEachPeer([&](int peer) {
        try {
          everything_->recv(peer, kProbeSlot, 0, 0);
        } catch (const std::exception&) {
          outcome.ranks.push_back(peer);
        }
      });
      std::sort(outcome.ranks.begin(), outcome.ranks.end());
    }
    // Wait, do not just mark: after this no thread of Gloo's touches the caller's memory.
    Close();
    return outcome;
  }

  const int rank_;
  const int world_size_;
  std::unique_ptr<char, AlignedDelete> incoming_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::unique_ptr<gloo::transport::UnboundBuffer> everything_;
  bool closed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> Mesh::Connect(Store* store, int rank, int world_size,
                                                    const std::string& address, absl::Time deadline) {
  IgnoreBrokenPipes();
  auto mesh = std::make_unique<GlooMesh>(rank, world_size);
  StoreAdapter adapter(store, deadline);
  try {
    mesh->Open(&adapter, address, deadline);
  } catch (const std::exception& error) {
    if (!adapter.status().ok()) return adapter.status();
    const std::string message = absl::StrCat("rank ", rank, ", listening on ", address,
                                             ", could not connect to all other ranks: ", error.what());
    return absl::Now() >= deadline ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
  }
  return mesh;
}

}  // namespace tandem::collectives
