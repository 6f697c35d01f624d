// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_CONNECTION_LIMIT_H_
#define TANDEM_RPC_GRPC_SERVER_CONNECTION_LIMIT_H_

// Bounds the connections of a gRPC server. gRPC 1.51 has no such option, and a server of it that runs out of
// descriptors stops accepting for good. Only used in rpc/grpc.

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "grpcpp/support/channel_arguments.h"
#include "rpc/grpc/server/request_memory.h"

namespace tandem::rpc {

inline constexpr size_t kDefaultConnections = 4096;
// Returns the number of connections that a server with ServerOptions::max_connections = `wanted` accepts: at
// most 3/4 of the descriptors that this process may open, and kDefaultConnections if `wanted` is 0.
size_t EffectiveConnections(size_t wanted);

// Returns OK if a server with ServerOptions::max_connections = `wanted` can be started. Unimplemented, with
// the version of gRPC, if a limit is wanted and gRPC's sockets are not `known` (socket_mutator.h).
absl::Status CheckLimitWorks(size_t wanted, bool known);

// Refuses clients of a unix socket that are processes of another user, and counts the open connections of one
// server by their sockets. A connection beyond the limit is closed as soon as it is accepted, with an HTTP/2
// GOAWAY that names the limit, or with an alert of TLS. gRPC's clients get Unavailable, "GOAWAY received" or
// "alert internal error". The server logs the limit, at most once a minute. Thread-safe.
class ConnectionLimit : public std::enable_shared_from_this<ConnectionLimit> {
 public:
  struct Socket {
    int fd;
    ino_t inode;  // a descriptor with another inode belongs to something else: this socket is closed
    std::shared_ptr<ConnectionMemory> memory = nullptr;  // of a TCP connection
  };
  // `server` names the server in messages. `tls`: its connections begin with a handshake of TLS. Each TCP
  // connection has its account of `memory` while it is open.
  ConnectionLimit(std::string server, size_t limit, bool tls,
                  std::shared_ptr<RequestMemory> memory = nullptr);

  // Makes servers with these arguments obey this limit and widens their unix sockets (unix_buffers.h). No
  // effect with a gRPC release whose sockets are not known here.
  void AddTo(grpc::ChannelArguments* arguments);

  // Called by gRPC with a socket that is about to listen, and with a new connection.
  void AddListener(int fd);
  void AddConnection(int fd);
  // Returns duplicates of the sockets that listen.
  std::vector<ipc::Descriptor> DuplicateListeners();
  // Returns the open connections.
  std::vector<Socket> Open();
  // Ends a connection, unless it is closed already.
  static void Close(const Socket& connection);

 private:
  void RemoveClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends the reason and ends the connection. The descriptor stays open.
  void Refuse(int fd) const;
  // Refuses the clients that wait to be accepted, so that gRPC does not collect their descriptors.
  void RefuseWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string server_;
  const size_t limit_;
  const std::shared_ptr<RequestMemory> memory_;
  const std::string reason_;  // as HTTP/2 frames or an alert of TLS
  absl::Mutex mutex_;
  // Both may contain closed ones.
  std::vector<Socket> listeners_ ABSL_GUARDED_BY(mutex_);
  std::vector<Socket> connections_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_warning_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_CONNECTION_LIMIT_H_
