// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_EXCHANGE_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_EXCHANGE_H_

// Exchange carries out one collective at a time together with the other ranks.
//
// Each rank sends every other rank a *head*: the fingerprint of its operation, the amount of data it is going
// to send, and the first kChunkBytes of them. The rest follows in chunks as soon as the other's head has
// shown that both call the same operation, so agreeing costs no round trip of its own. A head that arrives
// before its operation is called waits in memory of its own; a rank can be ahead by no more than that.
//
// The operation is over when all heads have arrived and agree, all announced data have arrived, and all data
// have been sent. So every operation synchronises all ranks, and a rank that calls another operation is
// always detected on all of them.
//
// An operation moves data in up to two phases: what all ranks can send from the beginning (phase 0), and what
// depends on it, as reduced or forwarded chunks (phase 1).

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/backends/tcp/links.h"

namespace tandem::collectives::tcp {

// Data is moved and reduced in chunks of this many bytes, a multiple of every element's size. Smaller chunks
// would wake threads more often than the overlap justifies.
inline constexpr size_t kChunkBytes = 1 << 20;

// The data that this rank and one other exchange in an operation. Sizes are in bytes; both ranks must compute
// the same ones.
struct Lane {
  const char* send = nullptr;  // phase 0
  size_t send_bytes = 0;
  char* receive = nullptr;  // phase 0
  size_t receive_bytes = 0;
  // Size of the receive buffer if phase 0 is longer than the buffer: byte i lands at i modulo `ring` (a
  // multiple of kChunkBytes; 0: the buffer holds all of phase 0). The sender stays within the ring: it sends
  // a byte of phase 0 only after the byte of phase 1 that lies `ring` before it has come back.
  size_t ring = 0;
  char* receive2 = nullptr;  // phase 1
  size_t receive2_bytes = 0;
  size_t send2_bytes = 0;
};

// Begin to Finish are called by the operation's thread, the frame calls by the loop's thread, Stop by any.
class Exchange {
 public:
  // How an operation failed.
  struct Failure {
    enum class Kind { kNone, kStopped, kTimeout, kLost, kLeft, kDisagreement, kSizes };
    Kind kind = Kind::kNone;
    std::vector<int> ranks;  // kTimeout: those whose head or data is missing; kLost: those lost; else one
    bool arrived = false;    // kTimeout: all heads have arrived, only data are missing
    std::string detail;      // kLost: the network's error
    Fingerprint theirs;      // kDisagreement
    uint64_t bytes_sent = 0, bytes_expected = 0;  // kSizes: by the other rank, and by this one
  };

  Exchange(int rank, int world_size);

  // Must be called before the first operation.
  void SetLinks(Links* links) { links_ = links; }

  // Sends the heads. `lanes` is indexed by rank. This call and those below return false if the operation has
  // failed; see failure(). The links must then be closed before the operation's memory is released.
  bool Begin(const Fingerprint& fingerprint, double factor, absl::Span<const Lane> lanes,
             absl::Time deadline);
  // Waits until the heads of all ranks have arrived.
  bool AwaitHeads();
  // Wait until the first `bytes` bytes of a phase (all, if there are fewer) have arrived from every rank, or
  // from `peer`.
  bool AwaitReceived(int phase, size_t bytes);
  bool AwaitReceivedFrom(int peer, int phase, size_t bytes);
  // Waits until the first `bytes` bytes of phase 0 to `peer` are no longer needed in memory.
  bool AwaitSent(int peer, size_t bytes);
  // Sends the next chunk of phase 1: kChunkBytes, or the remainder. Requires that the peer's head has
  // arrived.
  void SendMore(int peer, const char* data, size_t bytes);
  bool Finish();
  // Returns the factors that came with the heads, by rank.
  std::vector<double> factors() const;
  Failure failure() const;

  // Ends the running operation and all later ones.
  void Stop();

  absl::StatusOr<char*> FrameBegins(int peer, const Frame& frame);
  void FrameEnds(int peer, const Frame& frame);
  void FrameSent(int peer, const Frame& frame);
  void LinkLost(int peer, const std::string& detail);
  // Returns true if the peer has announced that it leaves.
  bool HasLeft(int peer) const;

 private:
  struct Peer {
    // State of a head whose operation has not been called here yet.
    enum class Early { kNone, kArriving, kArrived } early = Early::kNone;
    Frame early_frame;
    std::unique_ptr<char[]> early_bytes;  // kChunkBytes

    Lane lane;
    bool agreed = false;
    double factor = 1.0;
    std::array<size_t, 2> received{};
    std::array<size_t, 2> queued{};  // bytes given to the links
    std::array<size_t, 2> sent{};    // bytes that the links have sent
    bool lost = false;
    bool left = false;
    std::string detail;
  };

  static char* Landing(const Lane& lane, int phase, size_t at);
  char* EarlyBuffer(Peer* peer);
  // Checks a head of the running operation. Returns true if its data are wanted.
  bool Accept(int peer, const Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many bytes of phase 0 may be given to the links now.
  size_t Sendable(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Needs(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Failed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for `done`, and sends meanwhile what may be sent.
  template <typename Done>
  bool Await(Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void Queue(int peer, Frame frame, const char* data);

  const int rank_;
  const int world_size_;
  Links* links_ = nullptr;
  absl::Time deadline_;  // of the operation's thread

  mutable absl::Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;  // operations begun
  Fingerprint fingerprint_ ABSL_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);  // by rank
  Failure failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_EXCHANGE_H_
