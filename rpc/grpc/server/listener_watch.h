// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_LISTENER_WATCH_H_
#define TANDEM_RPC_GRPC_SERVER_LISTENER_WATCH_H_

// Accepts connections for a gRPC server that has stopped doing so. gRPC 1.51 never accepts again at a
// listener whose accept has failed once, such as when the process had no descriptor left. Only used in
// rpc/grpc.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/ipc/descriptor.h"

namespace tandem::rpc {

// Watches the listeners of one server from a thread of its own, which sleeps while no client waits.
class ListenerWatch {
 public:
  // A connection that has waited this long is accepted here. gRPC takes milliseconds if it accepts at all.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // `listeners` are duplicates of the server's listening sockets, which do not block. The sockets stay open
  // until Stop, so call it before the server ends. `take` gets the index of the listener and a new
  // connection, which it owns from then on; it runs on the thread of the watch. `server` names the server in
  // messages.
  ListenerWatch(std::vector<ipc::Descriptor> listeners, std::string server,
                std::function<void(size_t listener, int fd)> take, absl::Duration patience = kPatience);
  // Calls Stop.
  ~ListenerWatch();

  // Joins the thread and closes the duplicates. Idempotent.
  void Stop();

 private:
  void Run();
  // Accepts all clients that wait at listener `i`. Returns false if there is no descriptor or memory for one.
  bool AcceptAll(size_t i);
  // Blocks for `duration`, or until Stop. Returns false after Stop.
  bool Pause(absl::Duration duration) const;

  std::vector<ipc::Descriptor> listeners_;
  const std::string server_;
  const std::function<void(size_t, int)> take_;
  const absl::Duration patience_;
  const ipc::Descriptor stop_;
  std::vector<bool> deaf_;  // gRPC does not accept at this listener any more; used by the thread only
  std::thread thread_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_LISTENER_WATCH_H_
