// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_RELAY_H_
#define TANDEM_TESTS_TESTING_PROCESSES_RELAY_H_

// Passes TCP connections of this host on to a server, and can cut them as a broken network does: bytes are
// held without a sign to either end, and arrive when the network heals.

#include <sys/types.h>

#include <cstdint>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::testing {

// Thread-safe. The destructor closes all connections.
class Relay {
 public:
  enum class Way {
    kThere,  // from the caller to the server
    kBack,
    kBoth,
  };
  static constexpr pid_t kEveryone = 0;

  // Listens at a port of `host`, a loopback address, that the kernel picks. Connections wait until Forward.
  explicit Relay(const std::string& host = "127.0.0.1");
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // "host:port"
  const std::string& address() const { return address_; }
  // Passes connections on to this port of 127.0.0.1. To be called once.
  void Forward(int port);
  // Holds the bytes of all connections of a process, of later ones, too, until Heal. Each call adds a cut. A
  // connection that either end closes meanwhile stays open at the other end.
  void Cut(pid_t caller, Way way = Way::kBoth);
  // Ends all cuts.
  void Heal();

 private:
  // One direction of a connection.
  struct Stream {
    int from, to;
    std::string bytes = {};  // received and not sent
    size_t sent = 0;         // of them
    bool ended = false;      // `from` sends no more
    bool cut = false;
  };
  struct Connection {
    uint64_t socket;  // the caller's, by its inode
    Stream there, back;
    bool broken = false;
  };
  struct CutRule {
    pid_t caller;
    Way way;
  };

  void Run();
  void Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves what can be moved without blocking. Returns false if an end is broken.
  static bool Move(Stream& stream);
  static void Apply(const CutRule& rule, Connection& connection);
  void Wake();

  int listener_ = -1, wake_ = -1, own_port_ = 0;
  std::string address_;
  absl::Mutex mutex_;
  int port_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<CutRule> cuts_ ABSL_GUARDED_BY(mutex_);
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_RELAY_H_
