// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/gloo/transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::collectives::gloo_library {
namespace {

namespace transport = ::gloo::transport;
using Milliseconds = std::chrono::milliseconds;

// Gloo adds time-outs to the clock in nanoseconds, so they must not be too large.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 30);

// Returns the time left, rounded up so that a wait never ends before the deadline.
Milliseconds TimeLeft(absl::Time deadline) {
  const absl::Duration left = std::clamp(deadline - MonotonicNow(), absl::ZeroDuration(), kLongestTimeout);
  return Milliseconds(absl::ToInt64Milliseconds(left) + 1);
}

// A status that passes through Gloo's code.
class StatusException : public std::runtime_error {
 public:
  explicit StatusException(absl::Status status)
      : std::runtime_error(std::string(status.message())), status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  const absl::Status status_;
};

// A buffer of an operation. Its waits end at the operation's deadline, whatever time-out Gloo gives, or when
// the guard is stopped.
class GuardedBuffer final : public transport::tcp::UnboundBuffer, private OperationGuard::Waiter {
 public:
  GuardedBuffer(const std::shared_ptr<transport::tcp::Context>& context, void* data, size_t size,
                OperationGuard* guard)
      : UnboundBuffer(context, data, size), guard_(guard) {
    if (!guard_->Add(this)) throw StatusException(guard_->stopped());
  }
  ~GuardedBuffer() override { guard_->Remove(this); }

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    sends_.push_back(to);
    UnboundBuffer::send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    receives_.push_back(from);
    UnboundBuffer::recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    receives_.insert(receives_.end(), from.begin(), from.end());
    UnboundBuffer::recv(std::move(from), slot, offset, bytes);
  }

  bool waitSend(int* rank, Milliseconds) override {
    return Wait(&sends_, rank,
                [this](int* peer, Milliseconds left) { return UnboundBuffer::waitSend(peer, left); });
  }
  bool waitRecv(int* rank, Milliseconds) override {
    return Wait(&receives_, rank,
                [this](int* peer, Milliseconds left) { return UnboundBuffer::waitRecv(peer, left); });
  }

 private:
  template <typename WaitForOne>
  bool Wait(std::vector<int>* pending, int* rank, const WaitForOne& wait) {
    const absl::Time deadline = guard_->deadline();
    int peer = -1;
    try {
      if (!wait(&peer, TimeLeft(deadline))) throw StatusException(guard_->stopped());
    } catch (const std::exception&) {
      if (MonotonicNow() >= deadline) guard_->NoteLate(*pending);
      throw;
    }
    const auto done = std::find(pending->begin(), pending->end(), peer);
    if (done != pending->end()) pending->erase(done);
    if (rank != nullptr) *rank = peer;
    return true;
  }

  void Interrupt() override {
    abortWaitRecv();
    abortWaitSend();
  }

  OperationGuard* const guard_;
  std::vector<int> sends_, receives_;  // the peers of transfers that are not known to be done
};

// A connection whose exceptions do not leave Gloo's thread.
class GuardedPair final : public transport::tcp::Pair {
 public:
  GuardedPair(transport::tcp::Context* context, transport::tcp::Device* device, int peer,
              Milliseconds timeout, OperationGuard* guard)
      : Pair(context, device, peer, timeout), guard_(guard) {}
  // Closes while handleEvents is still this class's.
  ~GuardedPair() override {
    std::lock_guard<std::mutex> lock(m_);
    if (state_ != CLOSED) changeState(CLOSED);
  }

  void handleEvents(int events) override {
    try {
      Pair::handleEvents(events);
    } catch (const std::exception& error) {
      const std::string text = TextOf(error);
      guard_->Stop(absl::UnavailableError(
          absl::StrCat("the connection to rank ", rank_, " failed in Gloo's thread: ", text)));
      // A thread that closes the connection has this lock and waits until this function returns.
      const std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
      if (!lock.owns_lock() || state_ == CLOSED) return;
      try {
        changeState(CLOSED);
      } catch (const std::exception&) {
        // The guard has said it already.
      }
    }
  }

 private:
  OperationGuard* const guard_;
};

class GuardedContext final : public transport::tcp::Context {
 public:
  GuardedContext(std::shared_ptr<transport::tcp::Device> device, int rank, int size, OperationGuard* guard)
      : Context(std::move(device), rank, size), guard_(guard) {}

  std::unique_ptr<transport::Pair>& createPair(int peer) override {
    pairs_[peer] = std::make_unique<GuardedPair>(this, device_.get(), peer, getTimeout(), guard_);
    return pairs_[peer];
  }
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void* data, size_t size) override {
    return std::make_unique<GuardedBuffer>(shared_from_this(), data, size, guard_);
  }

 private:
  OperationGuard* const guard_;
};

class GuardedDevice final : public transport::tcp::Device {
 public:
  GuardedDevice(const transport::tcp::attr& attributes, OperationGuard* guard)
      : Device(attributes), guard_(guard) {}

  std::shared_ptr<transport::Context> createContext(int rank, int size) override {
    return std::make_shared<GuardedContext>(shared_from_this(), rank, size, guard_);
  }

 private:
  OperationGuard* const guard_;
};

// Gloo's rendezvous over Tandem's store.
class RendezvousStore final : public ::gloo::rendezvous::Store {
 public:
  RendezvousStore(cluster::Store* store, absl::Time deadline) : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& value) override {
    Check(store_->Set(key, absl::string_view(value.data(), value.size())));
  }
  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_->Get(key, Left());
    Check(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override { Check(store_->Wait(keys, Left())); }
  void wait(const std::vector<std::string>& keys, const Milliseconds&) override { wait(keys); }

 private:
  absl::Duration Left() const { return std::max(deadline_ - MonotonicNow(), absl::ZeroDuration()); }
  static void Check(const absl::Status& status) {
    if (!status.ok()) throw StatusException(status);
  }

  cluster::Store* const store_;
  const absl::Time deadline_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<::gloo::Context>> ConnectGloo(cluster::Store* store, int rank, int world_size,
                                                             const std::string& address, absl::Time deadline,
                                                             OperationGuard* guard) {
  SigpipeBlock block;
  guard->Begin(deadline);
  try {
    const transport::tcp::attr attributes = transport::tcp::CreateDeviceAttr(address.c_str());
    std::shared_ptr<transport::Device> device = std::make_shared<GuardedDevice>(attributes, guard);
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank, world_size);
    context->setTimeout(TimeLeft(deadline));
    RendezvousStore rendezvous(store, deadline);
    context->connectFullMesh(rendezvous, device);
    return context;
  } catch (const StatusException& error) {
    return Annotate(error.status(), "Gloo's rendezvous");
  } catch (const std::exception& error) {
    const std::string text = absl::StrCat("Gloo cannot connect the ranks: ", TextOf(error));
    if (MonotonicNow() >= deadline) return absl::DeadlineExceededError(text);
    return absl::UnavailableError(text);
  }
}

void CloseGloo(::gloo::Context* context) {
  try {
    context->closeConnections();
  } catch (const std::exception&) {
    // A connection that cannot be closed has ended.
  }
}

std::string TextOf(const std::exception& error) {
  return std::string(absl::StripAsciiWhitespace(absl::StrReplaceAll(error.what(), {{"\n", " "}})));
}

SigpipeBlock::SigpipeBlock() {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

SigpipeBlock::~SigpipeBlock() {
  if (was_blocked_) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec now = {0, 0};
  (void)sigtimedwait(&pipe, nullptr, &now);
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

}  // namespace tandem::collectives::gloo_library
