// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_LAYOUT_H_
#define TANDEM_RPC_SHM_LAYOUT_H_

// The layout of the memory that the two ends of a connection share:
//
//   Control | records 0 | records 1 | released 0 | released 1 | payload 0 | payload 1
//
// Direction 0 is from the client to the server, direction 1 from the server to the client.
//
// - `records` is a ring of bytes that carries records (record.h).
// - `payload` is memory for data that is too large for a record. The sender writes it and the receiver reads
//   it in place.
// - `released` has a counter for each page of payload: how often the receiver has released a block that
//   begins at this page.
//
// The sender keeps the allocation state of its payload memory in private memory (arena.h).
//
// Peers are not trusted. Each process computes this geometry itself and checks everything that it reads from
// the shared memory against it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/ipc/futex.h"

namespace tandem::rpc::shm {

inline constexpr uint64_t kMagic = 0x74616e64656d5204;  // changes with every change of this layout
inline constexpr size_t kPage = 4096;                   // the unit of payload allocation

// How an end of the connection waits.
enum SleepState : uint32_t {
  kAwake = 0,
  kAtSocket = 1,  // a byte on the socket wakes it
  kAtFutex = 2,   // a futex wake of this word wakes it
};

// The beginning of the shared memory: the state of both directions and both ends.
struct Control {
  struct Direction {
    // Written by the sender: number of bytes of records written since the beginning.
    alignas(2 * ipc::kLine) std::atomic<uint64_t> written{0};
    // Set by the sender while it waits for space in `records` or `payload`. When the receiver frees some, it
    // resets this word and wakes the sender.
    alignas(2 * ipc::kLine) std::atomic<uint32_t> wants_space{0};
    // Written by the receiver: number of bytes of records read since the beginning.
    alignas(2 * ipc::kLine) std::atomic<uint64_t> read{0};
  };
  struct End {
    alignas(2 * ipc::kLine) std::atomic<uint32_t> asleep{kAwake};  // Asleep
  };
  Direction directions[2];
  End ends[2];  // the client's, the server's
};

// The offset and size of each part of the shared memory.
struct Geometry {
  // Computes the layout. InvalidArgument unless records_bytes is a power of two in [32 KiB, 16 MiB] and
  // payload_bytes is a multiple of 2 MiB in [2 MiB, 1 GiB].
  static absl::StatusOr<Geometry> Make(uint64_t records_bytes, uint64_t payload_bytes);

  size_t records_bytes = 0;  // per direction
  size_t payload_bytes = 0;  // per direction
  size_t pages = 0;          // pages of payload, per direction
  size_t records_offset[2] = {};
  size_t released_offset[2] = {};
  size_t payload_offset[2] = {};
  size_t total_bytes = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_LAYOUT_H_
