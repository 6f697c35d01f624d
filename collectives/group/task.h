// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_TASK_H_
#define TANDEM_COLLECTIVES_GROUP_TASK_H_

// Task is a sequence of operations that run one after the other under one Work, with copies before and after.

#include <cstring>
#include <memory>
#include <vector>

#include "collectives/group/call.h"
#include "collectives/group/work_state.h"

namespace tandem::collectives {

// A plain value. The queue owns it until it is completed, or the call that runs it does.
struct Task {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  static void Run(const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }

  std::vector<Call> calls;
  std::vector<Copy> before, after;  // between the user's tensors and `scratch`
  std::vector<std::unique_ptr<char[]>> scratch;
  std::vector<uint64_t> records;  // flight recorder ids, by call
  std::shared_ptr<internal::WorkState> work;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_TASK_H_
