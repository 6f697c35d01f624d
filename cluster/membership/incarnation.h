// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_MEMBERSHIP_INCARNATION_H_
#define TANDEM_CLUSTER_MEMBERSHIP_INCARNATION_H_

#include <cstdint>
#include <random>

namespace tandem::cluster {

// Returns a random number, not 0, for the memory of a store: a store that comes back with another number has
// lost what it knew.
inline uint64_t NewIncarnation() {
  std::random_device device;
  const uint64_t number = (static_cast<uint64_t>(device()) << 32) | device();
  return number == 0 ? 1 : number;
}

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_MEMBERSHIP_INCARNATION_H_
