// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_LINKS_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_LINKS_H_

// TCP connections between all ranks of a group, served by one event loop. Every frame contains its type and
// length. Before a byte of the payload is read, the receiver chooses its destination or ends the connection.
// So nothing that a peer sends can reach memory that was not meant for it.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/store/store.h"
#include "collectives/operation.h"

namespace tandem::collectives::tcp {

// The head of a message; `bytes` bytes of payload follow. Plain value, sent as it lies in memory, between
// little-endian machines only.
struct Frame {
  static constexpr uint32_t kMagic = 0x6d646e74;
  enum class Type : uint8_t {
    kHello = 1,  // the first of a connection: `id` is the group's, `value` the sender's rank
    kHead,       // the first of a collective: the sender's fingerprint, and the beginning of its data
    kData,       // more data of the collective
    kEager,      // a small message, with its data; `value` is its tag
    kRequest,    // a large message without its data, which follows a grant; `id` is the sender's
    kGrant,      // of request `id`; `value` is 0 if the data are not wanted
    kPayload,    // data of the granted message `id`
    kCredit,     // `value` bytes of eager messages were taken
  };
  uint32_t magic = kMagic;
  Type type = Type::kHello;
  uint8_t phase = 0;  // of kData
  uint16_t unused = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;
  uint64_t value = 0;
  double factor = 1.0;  // of kHead: Operation::factor of the sender
  Fingerprint fingerprint;
};
static_assert(sizeof(Frame) == 72);

// Send and Close are thread-safe; the rest is for the owner's thread. Owns the event loop and its thread.
class Links {
 public:
  // Receives the frames. All calls come from the loop's thread, one at a time, and must not block for long.
  // Only TurnEnds may call Close.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // A frame begins. Returns the destination of its payload (any value if it has none). An error ends the
    // connection.
    virtual absl::StatusOr<char*> FrameBegins(int peer, const Frame& frame) = 0;
    virtual void FrameEnds(int peer, const Frame& frame) = 0;
    // A frame for which Send returned false has been handed to the network.
    virtual void FrameSent(int peer, const Frame& frame) = 0;
    // The connection ended other than by Close. Called once for each peer.
    virtual void LinkLost(int peer, const std::string& detail) = 0;
    // Called after some of the calls above; user callbacks run here.
    virtual void TurnEnds() = 0;
  };

  // Listens on the numeric `address`, publishes the port through `store`, and connects to all other ranks.
  // Blocks until connected, or until `deadline`. `receiver` must outlive the links and may receive frames
  // before this returns. Errors: InvalidArgument (no numeric address), DeadlineExceeded naming the ranks that
  // did not come, Unavailable (not this machine's address, or naming a rank that could not be reached),
  // errors of the store.
  static absl::StatusOr<std::unique_ptr<Links>> Connect(cluster::Store* store, const std::string& group,
                                                        int rank, int world_size, const std::string& address,
                                                        absl::Time deadline, Receiver* receiver);
  virtual ~Links() = default;  // closes gracefully: data that the network has accepted is delivered

  // Sends a frame behind those that wait for the same peer; never blocks. Returns true if the payload has
  // been handed to the network. Otherwise the payload must stay valid until FrameSent, or until Close has
  // returned.
  virtual bool Send(int peer, const Frame& frame, const void* payload) = 0;

  // Closes all connections at once. When it has returned, in any thread, payloads and the receiver's memory
  // are no longer touched. Idempotent.
  virtual void Close() = 0;
};

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_LINKS_H_
