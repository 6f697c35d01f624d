#ifndef TANDEM_COLLECTIVES_GROUP_TASK_H_
#define TANDEM_COLLECTIVES_GROUP_TASK_H_

// Operations that run one behind the other under one Work, with the copies before and after them.

#include <cstring>
#include <memory>
#include <vector>

#include "collectives/group/call.h"
#include "collectives/group/work_state.h"

namespace tandem::collectives {

// A plain value, owned by the queue until it is completed, or by the call that runs it.
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
  std::vector<Copy> before, after;  // between the user's tensors and the scratch
  std::vector<std::unique_ptr<char[]>> scratch;
  std::vector<uint64_t> records;  // of the flight recorder, by call
  std::shared_ptr<internal::WorkState> work;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_TASK_H_
