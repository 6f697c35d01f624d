// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/owned_bytes.h"

#include <algorithm>
#include <string>

namespace tandem::rpc {

Bytes OwnedBytes(Bytes bytes) {
  const auto owned = [](const Slice& slice) { return slice.owner() != nullptr; };
  if (std::all_of(bytes.slices().begin(), bytes.slices().end(), owned)) return bytes;
  Bytes result;
  for (const Slice& slice : bytes.slices()) {
    result.Append(owned(slice) ? slice : Slice::FromString(std::string(slice.view())));
  }
  return result;
}

}  // namespace tandem::rpc
