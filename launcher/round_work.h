// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ROUND_WORK_H_
#define TANDEM_LAUNCHER_ROUND_WORK_H_

// Tells which nodes of a round have processes that end by themselves, so that the job waits for them.

#include <string>
#include <vector>

#include "cluster/rendezvous/rendezvous.h"

namespace tandem::launcher {

// Returns whether some node of the round has processes that end by themselves.
bool HasWork(const cluster::Round& round);
// Returns the ids of the other nodes of the round that have such processes and are not absent.
std::vector<std::string> OtherNodesWithWork(const cluster::Round& round);
// Returns the ids and hosts of the absent nodes that have such processes: "node b (10.0.0.2), ...", or "".
std::string AbsentNodesWithWork(const cluster::Round& round);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROUND_WORK_H_
