#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_LINKS_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_LINKS_H_

// Connections between all ranks of a group: Gloo's TCP device and event loop, with a framing of our own where
// Gloo has its pairs. Gloo's headers stay in links.cc.
//
// Gloo's pairs abort the process when a message is larger than the receive that awaits it, and take three
// messages for one. Here every frame says what it is and how long; the receiver decides, before a byte of the
// payload is read, where it goes, or that the connection ends. Nothing a peer sends can reach memory that was
// not meant for it.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/operation.h"
#include "collectives/store/store.h"

namespace tandem::collectives::gloo_tcp {

// The head of a message, sent as it lies in memory, by and to machines of little-endian order; `bytes` of
// payload follow. Plain value.
struct Frame {
  static constexpr uint32_t kMagic = 0x6d646e74;
  enum class Type : uint8_t {
    kHello = 1,  // the first of a connection: `id` is the group's, `value` the sender's rank
    kHead,       // the first of a collective: what the sender calls, and the beginning of its data
    kData,       // more data of the collective
    kEager,      // a small message, with its data; `value` is its tag
    kRequest,    // a large message, without: its data comes when it is granted; `id` is the sender's
    kGrant,      // of request `id`, by the receive `value`; 0: the data is not wanted
    kPayload,    // data of a granted message, for the receive `id`
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

// Send is thread-safe, Close too; the rest is for the owner's thread. Owns a thread of Gloo's.
class Links {
 public:
  // Who gets the frames. All calls come from Gloo's thread, one at a time, and must not block for long; only
  // TurnEnds may call Close.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // A frame begins: where its payload goes (anything if it has none). An error ends the connection.
    virtual absl::StatusOr<char*> FrameBegins(int peer, const Frame& frame) = 0;
    virtual void FrameEnds(int peer, const Frame& frame) = 0;
    // A frame for which Send returned false has been handed to the network.
    virtual void FrameSent(int peer, const Frame& frame) = 0;
    // The connection ended other than by Close. Once for each peer.
    virtual void LinkLost(int peer, const std::string& detail) = 0;
    // After some of these calls: the place for callbacks of other people's.
    virtual void TurnEnds() = 0;
  };

  // Listens on the numeric `address`, tells the others through `store` where, and connects to all. Blocks
  // until connected or `deadline`. `receiver` must outlive the links; it may hear of frames before this
  // returns. Errors: InvalidArgument (no numeric address), DeadlineExceeded naming the ranks that did not
  // come, Unavailable (not this machine's address; a rank that could not be reached, named), errors of the
  // store.
  static absl::StatusOr<std::unique_ptr<Links>> Connect(Store* store, const std::string& group, int rank,
                                                        int world_size, const std::string& address,
                                                        absl::Time deadline, Receiver* receiver);
  virtual ~Links() = default;  // closes softly: what the network has taken is delivered

  // Sends a frame, behind those that wait for the same peer, and never blocks. True: the payload has been
  // handed to the network. False: it must stay until FrameSent, or until Close has returned.
  virtual bool Send(int peer, const Frame& frame, const void* payload) = 0;

  // Closes all connections at once. When it has returned, in whatever thread, no payload and no receiver's
  // memory is touched any more. Idempotent.
  virtual void Close() = 0;
};

}  // namespace tandem::collectives::gloo_tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_LINKS_H_
