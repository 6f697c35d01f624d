// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_SHM_LINK_PAIR_H_
#define TANDEM_TESTS_RPC_SHM_LINK_PAIR_H_

// Both ends of a shared-memory connection in one process.

#include <fcntl.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/ipc/memory_file.h"
#include "base/status.h"
#include "rpc/shm/link.h"

namespace tandem::rpc::shm::testing {

struct LinkPair {
  explicit LinkPair(size_t payload_bytes = 2 << 20, size_t max_message_bytes = size_t{1} << 30)
      : geometry(Geometry::Make(32 << 10, payload_bytes).value()) {
    auto file = ipc::MemoryFile::Create("tandem-rpc", geometry.total_bytes).value();
    const int passed = fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0);
    auto mapped = ipc::MemoryFile::Map(ipc::Descriptor(passed), geometry.total_bytes).value();
    auto third = ipc::MemoryFile::Map(ipc::Descriptor(fcntl(file->descriptor(), F_DUPFD_CLOEXEC, 0)),
                                      geometry.total_bytes)
                     .value();
    memory = std::move(third);
    int ends[2];
    TANDEM_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    client = std::make_shared<Link>(Side::kClient, geometry, std::move(mapped), ipc::Descriptor(ends[0]),
                                    "the server", max_message_bytes);
    server = std::make_shared<Link>(Side::kServer, geometry, std::move(file), ipc::Descriptor(ends[1]),
                                    "the client", max_message_bytes);
  }
  ~LinkPair() {
    client->Close(absl::CancelledError("the test is over"));
    server->Close(absl::CancelledError("the test is over"));
  }

  const Geometry geometry;
  std::unique_ptr<ipc::MemoryFile> memory;  // as a third party sees it
  std::shared_ptr<Link> client, server;
};

inline Message Request(uint64_t call, Bytes body) {
  Message message;
  message.call = call;
  message.text = "/tandem.v1.Echo/Echo";
  message.body = std::move(body);
  return message;
}
inline Message Response(uint64_t call, Bytes body) {
  Message message;
  message.kind = RecordKind::kResponse;
  message.call = call;
  message.body = std::move(body);
  return message;
}

// Receives the next message at `to`, while `from` sends its queue. Returns false after 30 seconds, or if the
// link breaks.
inline bool Await(Link& from, Link& to, Message* message) {
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  while (!to.Receive(message)) {
    if (to.broken() || absl::Now() > give_up) return false;
    from.MoveQueue();
  }
  return true;
}

}  // namespace tandem::rpc::shm::testing

#endif  // TANDEM_TESTS_RPC_SHM_LINK_PAIR_H_
