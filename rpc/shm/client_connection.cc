// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/client_connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/ticks.h"
#include "base/trace/trace.h"
#include "rpc/shm/spinner.h"

namespace tandem::rpc::shm {
namespace {

constexpr int kMessagesInTurn = 64;
constexpr int64_t kLongestSleepNs = 100'000'000;

int64_t DeadlineNs(absl::Time deadline) {
  return deadline == absl::InfiniteFuture() ? kNoDeadline : ToSteadyNanoseconds(deadline);
}

}  // namespace

class ClientConnection::ShmAttempt : public Attempt, public std::enable_shared_from_this<ShmAttempt> {
 public:
  ShmAttempt(std::shared_ptr<ClientConnection> connection, const std::string& method, const Bytes& request,
             absl::Time deadline)
      : connection_(std::move(connection)),
        id_(connection_->next_id_.fetch_add(1, std::memory_order_relaxed)),
        deadline_ns_(DeadlineNs(deadline)),
        method_(method),
        request_(request) {}

  void Start(Channel::Done done) override {
    done_ = std::move(done);
    if (cancelled_.load()) return End(absl::CancelledError("the call was cancelled"));
    connection_->Begin(shared_from_this());
  }

  void Cancel() override {
    cancelled_.store(true);
    const std::shared_ptr<ShmAttempt> taken = connection_->Take(id_);
    if (taken == nullptr) return;  // not begun, or over
    connection_->SendCancel(id_);
    End(absl::CancelledError("the call was cancelled"));
    // A polling caller may be waiting for this call.
    connection_->link_->WakeOwn();
  }

  // Ends the call. Called once, by the thread that has removed it with Take.
  void End(absl::StatusOr<Bytes> result) {
    Channel::Done done = std::move(done_);
    request_ = Bytes();
    std::move(done)(std::move(result));
  }

  uint64_t id() const { return id_; }
  int64_t deadline_ns() const { return deadline_ns_; }
  bool cancelled() const { return cancelled_.load(); }
  Message ToMessage() const {
    Message message;
    message.kind = RecordKind::kRequest;
    message.call = id_;
    message.deadline_ns = deadline_ns_;
    message.text = method_;
    message.body = request_;
    return message;
  }

 private:
  const std::shared_ptr<ClientConnection> connection_;
  const uint64_t id_;
  const int64_t deadline_ns_;
  const std::string& method_;  // owned by the caller until `done`
  Bytes request_;
  Channel::Done done_;
  std::atomic<bool> cancelled_{false};
};

absl::StatusOr<std::shared_ptr<ClientConnection>> ClientConnection::Start(std::shared_ptr<Link> link) {
  const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) return absl::FailedPreconditionError("no descriptor is left");
  std::shared_ptr<ClientConnection> connection(new ClientConnection(std::move(link), event));
  connection->next_look_ns_.store(kNoDeadline);
  connection->thread_ = std::thread([c = connection.get()] {
    trace::NameThread("shm client");
    c->Run();
  });
  return connection;
}

ClientConnection::~ClientConnection() { TANDEM_CHECK(!thread_.joinable()); }

std::shared_ptr<Attempt> ClientConnection::NewAttempt(const std::string& method, const Bytes& request,
                                                      absl::Time deadline) {
  return std::make_shared<ShmAttempt>(shared_from_this(), method, request, deadline);
}

void ClientConnection::Begin(std::shared_ptr<ShmAttempt> attempt) {
  Message message = attempt->ToMessage();
  const uint64_t id = attempt->id();
  const int64_t deadline_ns = attempt->deadline_ns();
  {
    absl::MutexLock lock(&mutex_);
    calls_.emplace(id, attempt);
    outstanding_.store(calls_.size(), std::memory_order_relaxed);
    if (deadline_ns < next_look_ns_.load(std::memory_order_relaxed)) {
      next_look_ns_.store(deadline_ns, std::memory_order_relaxed);
      Poke();
    }
  }
  // The call may end at any moment after this.
  link_->Send(std::move(message));
  if (!link_->broken() && !attempt->cancelled()) return;
  // FailAll, or a cancellation, may have run too early to see the call.
  if (const auto taken = Take(id)) {
    taken->End(link_->broken() ? link_->failure() : absl::CancelledError("the call was cancelled"));
  }
}

std::shared_ptr<ClientConnection::ShmAttempt> ClientConnection::Take(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<ShmAttempt> attempt = std::move(found->second);
  calls_.erase(found);
  outstanding_.store(calls_.size(), std::memory_order_relaxed);
  return attempt;
}

bool ClientConnection::Pump() {
  // Read before receiving: what the peer sent before it ended is still delivered.
  const bool ended = peer_ended_.load();
  bool worked = link_->has_queue() && link_->MoveQueue();
  Message message;
  for (int i = 0; i < kMessagesInTurn && link_->Receive(&message); ++i) {
    worked = true;
    const std::shared_ptr<ShmAttempt> attempt = Take(message.call);
    if (attempt == nullptr) continue;  // it ended before its response arrived
    if (message.too_large) {
      attempt->End(absl::ResourceExhaustedError(
          "the answer exceeds the channel's limit (ChannelOptions::max_message_bytes)"));
    } else if (message.code != absl::StatusCode::kOk) {
      attempt->End(absl::Status(message.code, message.text));
    } else {
      attempt->End(std::move(message.body));
    }
  }
  if (ended && !worked) {
    link_->Break(absl::UnavailableError("the server has ended or closed the connection"));
  }
  if (link_->broken()) FailAll(link_->failure());
  return worked;
}

bool ClientConnection::MayFallAsleep(SleepState how) {
  link_->FallAsleep(how);
  if (link_->has_queue()) link_->MoveQueue();  // also asks the peer to wake this end when space is freed
  if (!link_->HasIncoming() && !link_->broken()) return true;
  link_->WakeUp();
  return false;
}

void ClientConnection::Run() {
  Spinner spinner;
  while (!stop_.load()) {
    if (TryReceive()) {
      link_->WakeUp();
      bool sleep = false;
      while (!sleep && !stop_.load(std::memory_order_relaxed)) {
        if (Pump()) {
          spinner.Worked();
        } else if (outstanding_.load(std::memory_order_relaxed) == 0 || !spinner.Spin()) {
          sleep = link_->broken() || (!peer_ended_.load() && MayFallAsleep(kAtSocket));
        }
        if (SteadyNanoseconds() >= next_look_ns_.load(std::memory_order_relaxed)) ExpireCalls();
      }
      StopReceiving();
    }
    const int64_t left_ns = next_look_ns_.load() - SteadyNanoseconds();
    const int timeout_ms = left_ns > 3'600'000'000'000
                               ? 3'600'000
                               : static_cast<int>(std::max<int64_t>(0, left_ns) / 1'000'000 + 1);
    pollfd polled[] = {{event_.get(), POLLIN, 0}, {peer_ended_.load() ? -1 : link_->socket(), POLLIN, 0}};
    poll(polled, 2, timeout_ms);
    spinner.Woke();
    uint64_t signals;
    if (polled[0].revents != 0) (void)!read(event_.get(), &signals, sizeof(signals));
    if (polled[1].revents != 0 && !link_->DrainSocket()) {
      peer_ended_.store(true);
      link_->WakeOwn();  // the receiving thread detects the end
    }
    if (link_->broken()) FailAll(link_->failure());
    if (SteadyNanoseconds() >= next_look_ns_.load()) ExpireCalls();
  }
}

void ClientConnection::InlinePoll(absl::FunctionRef<bool()> over, absl::Time deadline) {
  if (!TryReceive()) return;
  const std::shared_ptr<ClientConnection> self = shared_from_this();
  const int64_t deadline_ns = DeadlineNs(deadline);
  link_->WakeUp();
  Spinner& spinner = inline_spinner_;
  while (!over() && !link_->broken() && !stop_.load(std::memory_order_relaxed)) {
    if (Pump()) {
      spinner.Worked();
      continue;
    }
    if (spinner.Spin()) continue;
    const int64_t now_ns = SteadyNanoseconds();
    if (now_ns >= next_look_ns_.load()) ExpireCalls();
    if (now_ns >= deadline_ns) break;
    if (MayFallAsleep(kAtFutex)) {
      if (!over()) {
        const int64_t until_ns = std::min(deadline_ns, next_look_ns_.load());
        link_->SleepAtFutex(std::clamp<int64_t>(until_ns - now_ns, 1000, kLongestSleepNs));
      }
      link_->WakeUp();
    }
    spinner.Woke();
  }
  spinner.Worked();
  // The connection's own thread sleeps on the socket, so from here on responses must wake that.
  while (!MayFallAsleep(kAtSocket) && !link_->broken()) Pump();
  StopReceiving();
}

void ClientConnection::SendCancel(uint64_t call) {
  link_->Drop(call);
  Message cancel;
  cancel.kind = RecordKind::kCancel;
  cancel.call = call;
  link_->Send(std::move(cancel));
}

void ClientConnection::ExpireCalls() {
  std::vector<std::shared_ptr<ShmAttempt>> expired;
  const int64_t now_ns = SteadyNanoseconds();
  {
    absl::MutexLock lock(&mutex_);
    int64_t next_ns = kNoDeadline;
    for (const auto& [id, attempt] : calls_) {
      if (attempt->deadline_ns() <= now_ns) {
        expired.push_back(attempt);
      } else {
        next_ns = std::min(next_ns, attempt->deadline_ns());
      }
    }
    for (const auto& attempt : expired) calls_.erase(attempt->id());
    outstanding_.store(calls_.size(), std::memory_order_relaxed);
    next_look_ns_.store(next_ns);
  }
  for (const auto& attempt : expired) {
    // A handler that still waits for this call must be told: it does not watch the deadline itself.
    SendCancel(attempt->id());
    attempt->End(absl::DeadlineExceededError("no answer within the deadline"));
  }
  if (!expired.empty()) link_->WakeOwn();
}

void ClientConnection::FailAll(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, std::shared_ptr<ShmAttempt>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls.swap(calls_);
    outstanding_.store(0, std::memory_order_relaxed);
  }
  link_->Close(why);
  for (const auto& [id, attempt] : calls) attempt->End(why);
  if (!calls.empty()) link_->WakeOwn();
}

void ClientConnection::Poke() {
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));
}

void ClientConnection::Close() {
  link_->Close(absl::CancelledError("the channel was closed"));
  stop_.store(true);
  Poke();
  if (thread_.joinable()) thread_.join();
  FailAll(absl::CancelledError("the channel was closed"));
}

}  // namespace tandem::rpc::shm
