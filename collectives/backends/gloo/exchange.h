#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_EXCHANGE_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_EXCHANGE_H_

// How the ranks carry out one collective together.
//
// Each rank sends each other a *head*: the fingerprint of what it calls, how much data it is going to send,
// and the first kChunkBytes of them. The rest follows, in chunks, as soon as the other's head has shown that
// both call the same, so agreeing costs no round trip of its own. A head that comes before its operation is
// called waits in memory of its own; a rank can be ahead by no more than that. The operation is over when all
// heads have come and agree, all that was promised has come, and all that was sent has left: so every
// operation synchronises all ranks, and a rank that calls something else is found, on all of them, always.
//
// An operation moves data in up to two phases: what all can send from the beginning (phase 0), and what
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
#include "collectives/backends/gloo/links.h"

namespace tandem::collectives::gloo_tcp {

// Data moves and is reduced in pieces of this many bytes, a multiple of every element's size. Smaller ones
// wake threads more often than the overlap is worth.
inline constexpr size_t kChunkBytes = 1 << 20;

// What this rank and one other exchange in an operation. Sizes in bytes; both ranks must come to the same.
struct Lane {
  const char* send = nullptr;  // phase 0
  size_t send_bytes = 0;
  char* receive = nullptr;  // phase 0
  size_t receive_bytes = 0;
  // Where phase 0 lands when it is longer than the memory: at its place modulo `ring` (a multiple of
  // kChunkBytes; 0: it is not). The sender keeps within the ring: it sends a byte of phase 0 only when the
  // byte of phase 1 that lies `ring` before has come back.
  size_t ring = 0;
  char* receive2 = nullptr;  // phase 1
  size_t receive2_bytes = 0;
  size_t send2_bytes = 0;
};

// Begin to Finish are for one thread, the operation's; the frame calls for Gloo's; Stop for any.
class Exchange {
 public:
  // How an operation failed.
  struct Failure {
    enum class Kind { kNone, kStopped, kTimeout, kLost, kLeft, kDisagreement, kSizes };
    Kind kind = Kind::kNone;
    std::vector<int> ranks;  // kTimeout: whose head or data has not come; kLost: who is gone; else one
    bool arrived = false;    // kTimeout: all heads have come, only data are missing
    std::string detail;      // kLost: what the network said
    Fingerprint theirs;      // kDisagreement
    uint64_t bytes_sent = 0, bytes_expected = 0;  // kSizes: what the other rank sends, and this one awaits
  };

  Exchange(int rank, int world_size);

  // Before the first operation.
  void SetLinks(Links* links) { links_ = links; }

  // Sends the heads. `lanes`: by rank. The calls return false when the operation has failed: see failure();
  // the links must be closed before its memory is given back.
  bool Begin(const Fingerprint& fingerprint, double factor, absl::Span<const Lane> lanes,
             absl::Time deadline);
  // Waits until the heads of all ranks have come.
  bool AwaitHeads();
  // Waits until the first `bytes` of a phase, or all where there are fewer, have come from every rank / from
  // `peer`.
  bool AwaitReceived(int phase, size_t bytes);
  bool AwaitReceivedFrom(int peer, int phase, size_t bytes);
  // Waits until `peer`'s first `bytes` of phase 0 are no longer needed in memory.
  bool AwaitSent(int peer, size_t bytes);
  // Sends the next chunk of phase 1: kChunkBytes, or what is left. The peer's head has come.
  void SendMore(int peer, const char* data, size_t bytes);
  bool Finish();
  // The factors that came with the heads, by rank.
  std::vector<double> factors() const;
  Failure failure() const;

  // Ends the operation that runs and all later ones.
  void Stop();

  absl::StatusOr<char*> FrameBegins(int peer, const Frame& frame);
  void FrameEnds(int peer, const Frame& frame);
  void FrameSent(int peer, const Frame& frame);
  void LinkLost(int peer, const std::string& detail);
  // Whether the peer has said that it leaves.
  bool HasLeft(int peer) const;

 private:
  struct Peer {
    // A head whose operation has not been called here yet.
    enum class Early { kNone, kArriving, kHere } early = Early::kNone;
    Frame early_frame;
    std::unique_ptr<char[]> early_bytes;  // kChunkBytes

    Lane lane;
    bool agreed = false;
    double factor = 1.0;
    std::array<size_t, 2> received{};
    std::array<size_t, 2> queued{};  // given to the links
    std::array<size_t, 2> sent{};    // left them
    bool lost = false;
    bool left = false;
    std::string detail;
  };

  static char* Landing(const Lane& lane, int phase, size_t at);
  char* EarlyRoom(Peer* peer);
  // Looks at a head of the operation that runs. True: its data are wanted.
  bool Accept(int peer, const Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How many bytes of phase 0 may be given to the links now.
  size_t Sendable(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Needs(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Failed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for `done`, and keeps sending what may be sent meanwhile.
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

}  // namespace tandem::collectives::gloo_tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_EXCHANGE_H_
