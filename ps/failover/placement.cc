// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/placement.h"

namespace tandem::ps {

Copy FromProto(const v1::Replica& replica) { return {.id = replica.id(), .address = replica.address()}; }

v1::Replica ToProto(const Copy& copy) {
  v1::Replica replica;
  replica.set_id(copy.id);
  replica.set_address(copy.address);
  return replica;
}

ShardPlacement FromProto(const v1::ShardPlacement& placement) {
  ShardPlacement result{.version = placement.version(),
                        .term = placement.term(),
                        .primary = FromProto(placement.primary()),
                        .failovers = placement.failovers(),
                        .handovers = placement.handovers()};
  for (const v1::Replica& replica : placement.in_sync()) result.in_sync.push_back(FromProto(replica));
  return result;
}

v1::ShardPlacement ToProto(const ShardPlacement& placement) {
  v1::ShardPlacement result;
  result.set_version(placement.version);
  result.set_term(placement.term);
  *result.mutable_primary() = ToProto(placement.primary);
  for (const Copy& copy : placement.in_sync) *result.add_in_sync() = ToProto(copy);
  result.set_failovers(placement.failovers);
  result.set_handovers(placement.handovers);
  return result;
}

}  // namespace tandem::ps
