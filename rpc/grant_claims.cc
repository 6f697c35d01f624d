// SPDX-License-Identifier: Apache-2.0
#include "rpc/grant_claims.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::rpc {
namespace {

using Rights = std::vector<Right>;
const std::map<std::string, Rights>& RightsOfRoles() {
  static const auto* const kRights = new std::map<std::string, Rights>{
      {"reader", {Right::kObserve, Right::kRead}},
      {"trainer", {Right::kObserve, Right::kRead, Right::kTrain}},
      {"actor", {Right::kObserve, Right::kRead, Right::kAct}},
      {"learner", {Right::kObserve, Right::kRead, Right::kTrain, Right::kAct}},
      {"operator", {Right::kObserve, Right::kAdmin}},
  };
  return *kRights;
}

}  // namespace

bool GrantClaims::Has(Right right) const {
  const auto rights = RightsOfRoles().find(role);
  return rights != RightsOfRoles().end() &&
         std::find(rights->second.begin(), rights->second.end(), right) != rights->second.end();
}

bool GrantClaims::Covers(absl::string_view table) const {
  if (tables.empty()) return true;
  const std::string name(table);
  return std::any_of(tables.begin(), tables.end(), [&name](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

std::string GrantClaims::ToString() const {
  return absl::StrCat("grant ", id, name.empty() ? "" : absl::StrCat(" (", absl::CHexEscape(name), ")"), ", ",
                      role, tables.empty() ? "" : absl::StrCat(" of ", absl::StrJoin(tables, ", ")));
}

const std::vector<std::string>& GrantRoles() {
  static const auto* const kRoles =
      new std::vector<std::string>{"reader", "trainer", "actor", "learner", "operator"};
  return *kRoles;
}

}  // namespace tandem::rpc
