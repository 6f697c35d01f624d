#ifndef TANDEM_RPC_SHM_LAYOUT_H_
#define TANDEM_RPC_SHM_LAYOUT_H_

// The memory that the two ends of a connection share, and its layout:
//
//   Control | records 0 | records 1 | released 0 | released 1 | payload 0 | payload 1
//
// Direction 0 is from the client to the server, 1 back. `records` is a ring of bytes that carries records
// (see record.h); `payload` is memory in which the sender puts what is too large for a record, and where the
// receiver reads it; `released` counts, for each page of payload, how often the receiver has given back a
// block that begins there. Who sends keeps the books of its payload for itself (arena.h).
//
// Peers are not trusted: each process computes this geometry for itself and checks against it whatever it
// reads from here.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/ipc/futex.h"

namespace tandem::rpc::shm {

inline constexpr uint64_t kMagic = 0x74616e64656d5202;  // changes with the layout of anything here
inline constexpr size_t kPage = 4096;                   // payload is given out in these

// How an end waits.
enum Asleep : uint32_t {
  kAwake = 0,
  kAtSocket = 1,  // a byte on the socket wakes it
  kAtFutex = 2,   // a wake of the word itself does
};

struct Control {
  struct Direction {
    // By the sender.
    alignas(2 * ipc::kLine) std::atomic<uint64_t> written{0};  // bytes of records, from the beginning
    // It waits for room in `records` or `payload`: who makes some resets this and wakes it.
    alignas(2 * ipc::kLine) std::atomic<uint32_t> wants_room{0};
    // By the receiver.
    alignas(2 * ipc::kLine) std::atomic<uint64_t> read{0};
  };
  struct End {
    alignas(2 * ipc::kLine) std::atomic<uint32_t> asleep{kAwake};  // Asleep
  };
  Direction directions[2];
  End ends[2];  // the client, the server
};

// Where everything lies.
struct Geometry {
  // InvalidArgument unless records_bytes is a power of two in [32 KiB, 16 MiB] and payload_bytes a multiple
  // of 2 MiB in [2 MiB, 1 GiB].
  static absl::StatusOr<Geometry> Make(uint64_t records_bytes, uint64_t payload_bytes);

  size_t records_bytes = 0;  // each way
  size_t payload_bytes = 0;  // each way
  size_t pages = 0;          // of payload, each way
  size_t records_offset[2] = {};
  size_t released_offset[2] = {};
  size_t payload_offset[2] = {};
  size_t total_bytes = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_LAYOUT_H_
