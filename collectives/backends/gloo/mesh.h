#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_MESH_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_MESH_H_

// Connections between all ranks of a group, over Gloo's TCP transport, and the two ways in which we use them.
// Gloo's own headers stay in mesh.cc.
//
// Gloo aborts the process when a message is larger than the receive that awaits it. Therefore what a rank
// sends without knowing what its peers are about to do is a *message* of at most kMessageBytes, received into
// room for kMessageBytes, whatever it turns out to hold. Only when the ranks have compared their messages,
// and know that they agree, do they *transfer* memory of any size directly.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// For one thread at a time. Owns a thread of Gloo's. Ignores SIGPIPE in the whole process if nobody handles
// it: Gloo writes to sockets that a dead peer has closed.
class Mesh {
 public:
  static constexpr size_t kMessageBytes = (256 << 10) + 64;
  // Messages begin with this word, little-endian.
  static constexpr uint64_t kMagic = 0x31676d6d65646e74;

  // How an exchange or transfer ended.
  struct Outcome {
    enum class Kind { kDone, kTimeout, kLost };
    Kind kind = Kind::kDone;
    std::vector<int>
        ranks;  // kTimeout: whose message did not come (transfers: may not have come); kLost: who is gone
    std::string detail;  // Gloo's words
  };
  // Memory to send to, or to receive from, a rank. Parts of no bytes are skipped, on both sides.
  struct Part {
    int rank;
    const void* data;
    size_t bytes;
  };

  // All ranks have met. Blocks until connected or `deadline`. Errors: Unavailable or DeadlineExceeded.
  static absl::StatusOr<std::unique_ptr<Mesh>> Connect(Store* store, int rank, int world_size,
                                                       const std::string& address, absl::Time deadline);
  virtual ~Mesh() = default;  // closes softly: what was sent is delivered

  // Sends messages[r] to every other rank r (own entry unused; each begins with kMagic and has 8 to
  // kMessageBytes bytes), and waits for all of theirs, which incoming(r) then holds until the next exchange.
  // After any outcome but kDone the mesh is closed, no memory of the caller is referred to any more, and
  // further calls return kLost.
  virtual Outcome Exchange(absl::Span<const absl::Span<const char>> messages, absl::Time deadline) = 0;
  // The message of rank r: kMessageBytes of memory, aligned to 64, of which its length was written.
  virtual const char* incoming(int rank) const = 0;

  // Sends and receives memory whose sizes both sides have agreed upon; returns when all has been received and
  // handed to the network. The parts to receive are written to.
  virtual Outcome Transfer(absl::Span<const Part> sends, absl::Span<const Part> receives,
                           absl::Time deadline) = 0;

  // Closes all connections at once; the peers see kLost. Idempotent.
  virtual void Close() = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_MESH_H_
