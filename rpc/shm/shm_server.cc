// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/shm_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/futex.h"
#include "base/ipc/host_identity.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/ticks.h"
#include "base/trace/trace.h"
#include "rpc/shm/spinner.h"
#include "tandem/v1/shared_memory.pb.h"

namespace tandem::rpc::shm {
namespace {

constexpr size_t kRecordsBytes = 256 << 10;
// How often new connections and ended peers are checked while there is work.
constexpr int64_t kPollEveryNs = 5'000'000;
// How often the deadlines of responses that wait for space are checked.
constexpr int kQueuePollMs = 100;

void Signal(int event) {
  const uint64_t one = 1;
  (void)!write(event, &one, sizeof(one));
}

}  // namespace

// ---- ServingThread

absl::StatusOr<std::unique_ptr<ServingThread>> ServingThread::Start(std::shared_ptr<Closing> closing) {
  ipc::Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return absl::FailedPreconditionError("no descriptor is left");
  return absl::WrapUnique(new ServingThread(std::move(closing), std::move(event)));
}

ServingThread::ServingThread(std::shared_ptr<Closing> closing, ipc::Descriptor event)
    : closing_(std::move(closing)), event_(std::move(event)), thread_([this] { Run(); }) {}

void ServingThread::Adopt(std::shared_ptr<ServerConnection> connection) {
  count_.fetch_add(1);
  absl::MutexLock lock(&mutex_);
  all_.push_back(connection);
  new_.push_back(std::move(connection));
  has_new_.store(true);
  Signal(event_.get());
}

size_t ServingThread::unfinished() const {
  absl::MutexLock lock(&mutex_);
  size_t count = 0;
  for (const auto& connection : all_) count += connection->unfinished();
  return count;
}

void ServingThread::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  Signal(event_.get());
  thread_.join();
  std::vector<std::shared_ptr<ServerConnection>> all;
  {
    absl::MutexLock lock(&mutex_);
    all.swap(all_);
    new_.clear();
  }
  for (const auto& connection : all) connection->Close(absl::CancelledError("the server has shut down"));
}

void ServingThread::TakeNew(std::vector<std::shared_ptr<ServerConnection>>* connections) {
  absl::MutexLock lock(&mutex_);
  connections->insert(connections->end(), new_.begin(), new_.end());
  new_.clear();
  has_new_.store(false);
}

void ServingThread::Run() {
  trace::NameThread("shm server");
  std::vector<std::shared_ptr<ServerConnection>> connections;
  Spinner spinner;
  int64_t polled_ns = SteadyNanoseconds();
  for (uint32_t turn = 0; !stop_.load(std::memory_order_relaxed); ++turn) {
    if (has_new_.load(std::memory_order_relaxed)) TakeNew(&connections);
    bool worked = false;
    for (const auto& connection : connections) worked |= connection->Serve();
    if (worked) {
      spinner.Worked();
      if (turn % 64 != 0) continue;
      const int64_t now_ns = SteadyNanoseconds();
      if (now_ns - polled_ns < kPollEveryNs) continue;
      polled_ns = now_ns;
      Poll(/*wait=*/false, &connections);
    } else if (!spinner.Spin()) {
      Poll(/*wait=*/true, &connections);
      spinner.Woke();
    }
  }
}

void ServingThread::Poll(bool wait, std::vector<std::shared_ptr<ServerConnection>>* connections) {
  bool work = has_new_.load() || stop_.load();
  bool queued = false;
  std::vector<pollfd> polled = {{event_.get(), POLLIN, 0}};
  for (const auto& connection : *connections) {
    Link& link = connection->link();
    polled.push_back({link.socket(), POLLIN, 0});
    if (!wait) continue;
    link.FallAsleep(kAtSocket);
    // Data sent before FallAsleep is seen here; data sent later wakes this thread.
    if (link.has_queue()) work |= link.MoveQueue();
    queued |= link.has_queue();
    work |= connection->HasWork() || link.broken();
  }
  poll(polled.data(), polled.size(), !wait || work ? 0 : queued ? kQueuePollMs : -1);
  uint64_t signals;
  if (polled[0].revents != 0) (void)!read(event_.get(), &signals, sizeof(signals));
  bool any_ended = false;
  for (size_t i = 0; i < connections->size(); ++i) {
    std::shared_ptr<ServerConnection>& connection = (*connections)[i];
    Link& link = connection->link();
    if (wait) link.WakeUp();
    const bool ended = polled[i + 1].revents != 0 && !link.DrainSocket();
    if (!ended && !link.broken()) continue;
    if (absl::IsDataLoss(link.failure()))
      LogWarning(absl::StrCat("a client is cut off: ", link.failure().message()));
    connection->Close(absl::UnavailableError("the client has ended or closed its channel"));
    {
      absl::MutexLock lock(&mutex_);
      all_.erase(std::find(all_.begin(), all_.end(), connection));
    }
    closing_->CallEnded();
    connection.reset();
    count_.fetch_sub(1);
    any_ended = true;
  }
  if (any_ended)
    connections->erase(std::remove(connections->begin(), connections->end(), nullptr), connections->end());
}

// ---- ShmServer

namespace {
// A connection keeps one descriptor open.
size_t MostConnections() {
  rlimit descriptors = {};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0 || descriptors.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return std::max<size_t>(1, descriptors.rlim_cur / 8);
}
}  // namespace

ShmServer::ShmServer(const ShmServerOptions& options, std::vector<Service> services)
    : limits_{.max_message_bytes = options.max_message_bytes, .max_unsent_bytes = options.payload_bytes},
      max_threads_(options.threads > 0 ? options.threads : ipc::UsableProcessors()),
      max_connections_(std::min(options.max_connections, MostConnections())),
      methods_(std::make_shared<const MethodTable>(std::move(services))),
      stop_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::unique_ptr<ShmServer>> ShmServer::Start(const ShmServerOptions& options,
                                                            std::vector<Service> services) {
  TANDEM_ASSIGN_OR_RETURN(const Geometry geometry, Geometry::Make(kRecordsBytes, options.payload_bytes));
  std::unique_ptr<ShmServer> server(new ShmServer(options, std::move(services)));
  if (!server->stop_event_.valid()) return absl::FailedPreconditionError("no descriptor is left");
  TANDEM_ASSIGN_OR_RETURN(auto first, ServingThread::Start(server->closing_));
  {
    absl::MutexLock lock(&server->mutex_);
    server->threads_.push_back(std::move(first));
  }
  TANDEM_ASSIGN_OR_RETURN(server->acceptor_,
                          Acceptor::Open(geometry, options.max_message_bytes, [s = server.get()] {
                            return s->connections() >= s->max_connections();
                          }));
  server->accept_thread_ = std::thread([s = server.get()] { s->AcceptLoop(); });
  return server;
}

void ShmServer::AcceptLoop() {
  TakeLink take = [this](std::shared_ptr<Link> link, Caller caller) {
    Take(std::move(link), std::move(caller));
  };
  while (acceptor_->Wait(stop_event_.get(), take)) {
  }
}

void ShmServer::Take(std::shared_ptr<Link> link, Caller caller) {
  auto connection =
      std::make_shared<ServerConnection>(std::move(link), std::move(caller), methods_, limits_, closing_);
  absl::MutexLock lock(&mutex_);
  const auto idlest = std::min_element(threads_.begin(), threads_.end(), [](const auto& a, const auto& b) {
    return a->connections() < b->connections();
  });
  ServingThread* thread = idlest->get();
  if (threads_.size() < max_threads_ && thread->connections() > 0) {
    if (auto one_more = ServingThread::Start(closing_); one_more.ok()) {
      thread = one_more->get();
      threads_.push_back(*std::move(one_more));
    }
  }
  thread->Adopt(std::move(connection));
}

size_t ShmServer::connections() const {
  absl::MutexLock lock(&mutex_);
  size_t count = 0;
  for (const auto& thread : threads_) count += thread->connections();
  return count;
}

size_t ShmServer::Unanswered() const {
  absl::MutexLock lock(&mutex_);
  size_t count = 0;
  for (const auto& thread : threads_) count += thread->unfinished();
  return count;
}

void ShmServer::Shutdown(absl::Duration grace) {
  absl::MutexLock lock(&shutdown_mutex_);  // a second caller returns when the first has finished
  if (shut_down_) return;
  shut_down_ = true;
  closing_->Begin();
  if (accept_thread_.joinable()) {
    Signal(stop_event_.get());
    accept_thread_.join();
    acceptor_->Close();
  }
  const absl::Time end = MonotonicNow() + grace;
  for (int64_t less = closing_->less(); Unanswered() > 0 && closing_->AwaitOneLess(less, end);) {
    less = closing_->less();
  }
  std::vector<std::unique_ptr<ServingThread>> threads;
  {
    absl::MutexLock threads_lock(&mutex_);
    threads.swap(threads_);
  }
  for (const auto& thread : threads) thread->Stop();
}

Service OfferService(ShmServer* server, std::string refusal) {
  auto offer = [server, refusal = std::move(refusal), host = ipc::HostIdentity()](
                   std::shared_ptr<ServerCall> call, const v1::SharedMemoryOfferRequest& request,
                   Reply<v1::SharedMemoryOfferResponse> reply) {
    v1::SharedMemoryOfferResponse response;
    if (server == nullptr) {
      response.set_refusal(refusal);
    } else if (request.host() != host) {
      response.set_refusal("the server is on another host, or in another network namespace");
    } else if (server->connections() >= server->max_connections()) {
      response.set_refusal(absl::StrCat("the server has ", server->max_connections(),
                                        " connections through shared memory, which is its limit "
                                        "(ServerOptions::max_shared_memory_connections)"));
    } else if (request.layout() != kMagic) {
      response.set_refusal("the server runs another version, whose layout of shared memory differs");
    } else {
      absl::StatusOr<std::string> ticket =
          server->tickets().Issue(call->caller(), call->peer(), MonotonicNow());
      if (ticket.ok()) {
        response.set_socket(server->socket_name());
        response.set_ticket(*std::move(ticket));
      } else {
        response.set_refusal(std::string(ticket.status().message()));
        response.set_passes(true);
      }
    }
    reply(std::move(response));
  };
  return {
      "tandem.v1.SharedMemory",
      {{"Offer", Right::kObserve,
        AsyncProtoHandler<v1::SharedMemoryOfferRequest, v1::SharedMemoryOfferResponse>(std::move(offer))}}};
}

}  // namespace tandem::rpc::shm
