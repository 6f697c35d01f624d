// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_INCOMING_WATCH_H_
#define TANDEM_RPC_GRPC_SERVER_INCOMING_WATCH_H_

// Bounds the messages of a gRPC server that have not arrived completely. gRPC keeps such a message in memory
// up to any size that its sender states, up to 4 GiB, and has no option for it. Only used in rpc/grpc.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "rpc/grpc/server/connection_limit.h"

namespace tandem::rpc {

// Compares, for each TCP connection of a server, the bytes that the kernel has received with those of the
// messages that the server has handled. The latter are rounded up for the headers of HTTP/2 and of TLS, and a
// surplus is forgotten at each look. So the difference is at most what gRPC and the stream hold of incomplete
// messages. Its thread sleeps most of the time. Closes
//
// - the connections with the most incomplete bytes while all together have more than the limit
//
// - a connection that has sent more than the largest gRPC call before the server could take its first call,
//   after the time for that
//
// gRPC's keepalive closes a connection that has stopped within a message.
class IncomingWatch {
 public:
  struct Options {
    std::string server;  // names the server in messages
    size_t max_bytes = size_t{1} << 30;
    // How long a new connection has for its first call if that is long. A server that is busy takes the
    // headers of a call later than they arrive.
    absl::Duration first_call = absl::Seconds(10);
    absl::Duration interval = absl::Milliseconds(100);  // shorter while much is incomplete
  };
  // Watches the connections of `sockets`, each with its account.
  IncomingWatch(Options options, std::shared_ptr<ConnectionLimit> sockets);
  ~IncomingWatch() { Stop(); }

  // Joins the thread. Idempotent.
  void Stop();

 private:
  struct Connection {
    // Bytes received that belong to no message and are no pings. Lowered so that `incomplete` is not below 0.
    int64_t other = 0;
    absl::Time opened;  // when it was first seen
    bool closing = false;
  };
  void Run();
  // Ends the connection. Warns, at most once a minute.
  void Close(const ConnectionLimit::Socket& socket, const std::string& why, Connection* connection);
  // Looks at all connections once. Returns the number of incomplete bytes.
  int64_t Look(absl::Time now);

  const Options options_;
  const std::shared_ptr<ConnectionLimit> sockets_;
  const ipc::Descriptor stop_;
  // By inode. Used by the thread only.
  absl::flat_hash_map<uint64_t, Connection> connections_;
  absl::Time next_warning_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_INCOMING_WATCH_H_
