// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_PROCESS_SOCKETS_H_
#define TANDEM_TESTS_TESTING_PROCESSES_PROCESS_SOCKETS_H_

// Finds out which process of this host owns which TCP socket.

#include <sys/types.h>

#include <cstdint>
#include <set>

namespace tandem::testing {

// Returns the inodes of the sockets that the process has open; empty if it has ended.
std::set<uint64_t> SocketsOf(pid_t pid);
// Returns the inode of the socket at `local_port` that is connected to `remote_port`, or 0.
uint64_t SocketBetween(int local_port, int remote_port);

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_PROCESS_SOCKETS_H_
