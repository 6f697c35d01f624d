// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_PROTOCOL_ACTIONS_H_
#define TANDEM_PS_FAILOVER_PROTOCOL_ACTIONS_H_

// Appends actions; protocol.cc and protocol_primary.cc share these functions.

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ps/failover/protocol.h"

namespace tandem::ps::internal {

inline std::string Name(const Copy& copy) { return absl::StrCat(copy.id, " at ", copy.address); }

inline void Add(Protocol::Actions* actions, Protocol::Action::Kind kind) {
  actions->emplace_back().kind = kind;
}
inline void Add(Protocol::Actions* actions, Protocol::Action::Kind kind, const Copy& copy) {
  Add(actions, kind);
  actions->back().copy = copy;
}
inline void Add(Protocol::Actions* actions, Protocol::Action::Kind kind, const ShardPlacement& placement) {
  Add(actions, kind);
  actions->back().placement = placement;
}
inline void Refuse(absl::Status why, Protocol::Actions* actions) {
  Add(actions, Protocol::Action::Kind::kRefuse);
  actions->back().status = std::move(why);
}

}  // namespace tandem::ps::internal

#endif  // TANDEM_PS_FAILOVER_PROTOCOL_ACTIONS_H_
