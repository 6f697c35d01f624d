// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/links.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "collectives/backends/tcp/event_loop.h"
#include "collectives/backends/tcp/mesh_connector.h"

namespace tandem::collectives::tcp {
namespace {

// Bytes that one turn of the event loop reads from one peer before it serves the others.
constexpr size_t kReadBudget = 2 << 20;

// Largest first record of an encrypted frame: a small message is one record.
constexpr size_t kFirstRecord = 4096;

// True if this thread is an event loop's, in Receiver::TurnEnds.
thread_local bool in_turn = false;

// One connection, served by the group's event loop. `mutex_` is held while that thread reads and while a
// thread closes. The loop's thread only tries to lock it, because the closing thread waits for the loop's
// turn.
class Link final : public EventLoop::Handler {
 public:
  // Takes `socket`.
  Link(EventLoop* loop, MeshSocket socket, int peer, Links::Receiver* receiver)
      : loop_(loop),
        peer_(peer),
        receiver_(receiver),
        tls_(std::move(socket.tls)),
        fd_(socket.socket.Release()) {}

  ~Link() override { Close(/*softly=*/true); }

  absl::Status Start() {
    absl::MutexLock lock(&mutex_);
    return loop_->Watch(fd_, EPOLLIN, this);
  }

  void Close(bool softly) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // The loop's thread, in a callback, must not wait for a thread that closes, because that one waits for
    // the loop.
    if (!in_turn) {
      mutex_.Lock();
    } else if (!mutex_.TryLock()) {
      return;
    }
    CloseUnlessClosed(softly);
    mutex_.Unlock();
  }

  void CloseUnlessClosed(bool softly) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (fd_ < 0) return;
    if (!softly) {
      // Keeps the kernel from storing unread data for minutes.
      const linger now = {1, 0};
      setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    CloseLocked();
  }

  void HandleEvents(uint32_t events) override {
    if (!mutex_.TryLock()) return;
    std::string detail;
    if (fd_ >= 0) {
      if ((events & EPOLLOUT) != 0) Flush();
      if ((events & ~EPOLLOUT) != 0 && !ReadSome(&detail)) CloseLocked();
    }
    mutex_.Unlock();
    if (!detail.empty()) receiver_->LinkLost(peer_, detail);
    in_turn = true;
    receiver_->TurnEnds();
    in_turn = false;
  }

  bool Send(const Frame& frame, const void* payload) {
    absl::MutexLock lock(&write_mutex_);
    if (write_fd_ < 0) return false;
    queue_.push_back({frame, static_cast<const char*>(payload), 0});
    if (queue_.size() > 1) return false;  // the loop's thread is sending
    if (WriteFront()) {
      queue_.pop_front();
      return true;
    }
    Listen(EPOLLIN | EPOLLOUT);
    return false;
  }

 private:
  struct Outgoing {
    Frame frame;
    const char* payload;
    size_t written;  // of frame and payload
  };

  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    {
      absl::MutexLock lock(&write_mutex_);
      write_fd_ = -1;
      queue_.clear();
    }
    loop_->Unwatch(fd_, this);
    close(fd_);
    fd_ = -1;
  }

  void Listen(uint32_t events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    if (!loop_->Watch(write_fd_, events, this).ok()) {
      shutdown(write_fd_, SHUT_RDWR);  // the kernel has no memory for it: the loop sees a lost connection
    }
  }

  // Continues to write; returns true when the first frame of the queue is done.
  bool WriteFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    Outgoing& one = queue_.front();
    const size_t total = sizeof(Frame) + one.frame.bytes;
    while (one.written < total) {
      const ssize_t n = tls_ != nullptr ? WriteRecord(one, total) : WriteClear(one, total);
      if (n < 0 && errno == EINTR) continue;
      // Any other error concerns the connection; the loop's thread finds it when it reads.
      if (n < 0) return false;
      one.written += n;
    }
    return true;
  }

  ssize_t WriteClear(Outgoing& one, size_t total) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    iovec parts[2];
    int count = 0;
    size_t skip = one.written;
    if (skip < sizeof(Frame)) {
      parts[count++] = {reinterpret_cast<char*>(&one.frame) + skip, sizeof(Frame) - skip};
      skip = sizeof(Frame);
    }
    if (skip < total) {
      parts[count++] = {const_cast<char*>(one.payload) + (skip - sizeof(Frame)), total - skip};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    return sendmsg(write_fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Writes one record of TLS. The frame and the beginning of its payload share the first one.
  ssize_t WriteRecord(const Outgoing& one, size_t total) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    if (one.written >= sizeof(Frame)) {
      return tls_->Write(one.payload + (one.written - sizeof(Frame)), total - one.written);
    }
    std::array<char, kFirstRecord> record;
    const size_t bytes = std::min(total, record.size());
    std::memcpy(record.data(), &one.frame, sizeof(Frame));
    if (bytes > sizeof(Frame)) {
      std::memcpy(record.data() + sizeof(Frame), one.payload, bytes - sizeof(Frame));
    }
    return tls_->Write(record.data() + one.written, bytes - one.written);
  }

  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      Frame done;
      {
        absl::MutexLock lock(&write_mutex_);
        if (write_fd_ < 0 || queue_.empty()) return;
        if (!WriteFront()) return;
        done = queue_.front().frame;
        queue_.pop_front();
        if (queue_.empty()) Listen(EPOLLIN);
      }
      receiver_->FrameSent(peer_, done);
    }
  }

  // Reads the available bytes, within the budget. Returns false, with the reason, if the connection is over.
  bool ReadSome(std::string* detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // Bytes that TLS has taken from the socket already cause no further event.
    for (size_t budget = kReadBudget; budget > 0 || (tls_ != nullptr && tls_->HasUnread());) {
      const bool in_head = have_ < sizeof(Frame);
      char* const to = in_head ? reinterpret_cast<char*>(&in_) + have_ : to_;
      const size_t want = in_head ? sizeof(Frame) - have_ : std::min(left_, std::max(budget, kFirstRecord));
      const ssize_t n = want == 0         ? 0
                        : tls_ != nullptr ? tls_->Read(to, want)
                                          : recv(fd_, to, want, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (n < 0 || (n == 0 && want > 0)) {
        *detail = n < 0 ? std::strerror(errno) : "closed by the peer";
        return false;
      }
      budget -= std::min<size_t>(n, budget);
      if (in_head) {
        have_ += n;
        if (have_ < sizeof(Frame)) continue;
        left_ = in_.bytes;
        if (absl::Status status = FrameBegins(); !status.ok()) {
          *detail = std::string(status.message());
          return false;
        }
      } else {
        to_ += n;
        left_ -= n;
      }
      if (left_ == 0) {
        receiver_->FrameEnds(peer_, in_);
        have_ = 0;
      }
    }
    return true;
  }

  absl::Status FrameBegins() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (in_.magic != Frame::kMagic) return absl::InvalidArgumentError("it sent no frame of ours");
    TANDEM_ASSIGN_OR_RETURN(to_, receiver_->FrameBegins(peer_, in_));
    return absl::OkStatus();
  }

  EventLoop* const loop_;
  const int peer_;
  Links::Receiver* const receiver_;
  const std::unique_ptr<crypto::TlsSocket> tls_;  // nullptr: the bytes are in clear

  absl::Mutex mutex_ ABSL_ACQUIRED_BEFORE(write_mutex_);
  int fd_ ABSL_GUARDED_BY(mutex_);  // -1: closed
  // The frame that is being read.
  Frame in_ ABSL_GUARDED_BY(mutex_);
  size_t have_ ABSL_GUARDED_BY(mutex_) = 0;
  char* to_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;

  absl::Mutex write_mutex_;
  int write_fd_ ABSL_GUARDED_BY(write_mutex_) = fd_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(write_mutex_);
};

class TcpLinks final : public Links {
 public:
  // Takes ownership of `sockets`, by rank.
  TcpLinks(std::unique_ptr<EventLoop> loop, std::vector<MeshSocket> sockets, Receiver* receiver)
      : loop_(std::move(loop)) {
    for (size_t peer = 0; peer < sockets.size(); ++peer) {
      links_.push_back(sockets[peer].socket.get() < 0
                           ? nullptr
                           : std::make_unique<Link>(loop_.get(), std::move(sockets[peer]),
                                                    static_cast<int>(peer), receiver));
    }
  }

  absl::Status Start() {
    for (const auto& link : links_) {
      if (link != nullptr) TANDEM_RETURN_IF_ERROR(link->Start());
    }
    return absl::OkStatus();
  }

  ~TcpLinks() override {
    for (const auto& link : links_) {
      if (link != nullptr) link->Close(/*softly=*/true);
    }
    // Joins the loop's thread. The line above did not wait for a link that the loop has closed itself, and
    // the loop may still be returning from that link.
    loop_.reset();
  }

  bool Send(int peer, const Frame& frame, const void* payload) override {
    return links_[peer]->Send(frame, payload);
  }

  void Close() override {
    for (const auto& link : links_) {
      if (link != nullptr) link->Close(/*softly=*/false);
    }
  }

 private:
  std::unique_ptr<EventLoop> loop_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
};

}  // namespace

absl::StatusOr<std::unique_ptr<Links>> Links::Connect(cluster::Store* store, const std::string& group,
                                                      int rank, int world_size, const std::string& address,
                                                      absl::Time deadline, Receiver* receiver) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<MeshSocket> sockets,
                          ConnectMesh(store, group, rank, world_size, address, deadline));
  absl::StatusOr<std::unique_ptr<EventLoop>> loop = EventLoop::Start();
  if (!loop.ok()) return Annotate(loop.status(), absl::StrCat("rank ", rank, " has no event loop"));
  auto links = std::make_unique<TcpLinks>(*std::move(loop), std::move(sockets), receiver);
  TANDEM_RETURN_IF_ERROR(links->Start());
  return links;
}

}  // namespace tandem::collectives::tcp
