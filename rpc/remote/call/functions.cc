// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/call/functions.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tandem::rpc::remote {

internal::TypesText internal::MakeTypesText(std::initializer_list<std::string> arguments,
                                            const std::string& result) {
  const std::string text = absl::StrCat("(", absl::StrJoin(arguments, ", "), ") -> ", result);
  return {text, HashText(text)};
}

Functions& Functions::AddEntry(Entry entry) {
  const std::string name(entry.id.name);
  const bool added = entries_.emplace(name, std::move(entry)).second;
  TANDEM_CHECK_MSG(added, absl::StrCat("the remote function ", name, " is added twice"));
  return *this;
}

void Functions::CheckOptions(absl::string_view function, const BatchOptions& options) {
  TANDEM_CHECK_MSG(options.max_batch >= 1,
                   absl::StrCat("BatchOptions of ", function, ": max_batch is 0, expected at least 1"));
  TANDEM_CHECK_MSG(options.concurrency >= 1, absl::StrCat("BatchOptions of ", function, ": concurrency is ",
                                                          options.concurrency, ", expected at least 1"));
}

const Functions::Entry* Functions::Find(absl::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::vector<std::string> Functions::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (!absl::StartsWith(name, "tandem.") && !absl::StartsWith(name, "untyped.")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tandem::rpc::remote
